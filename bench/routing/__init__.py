"""How a graph's router chooses among replicas: cache-aware against round-robin."""
