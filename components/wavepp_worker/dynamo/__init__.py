"""All that touches NVIDIA Dynamo: workers, arguments, KV events, metrics."""
