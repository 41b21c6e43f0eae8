"""The chaos campaign: whole graphs under load while processes, disks, descriptors and memory fail (``make chaos``).

Pure: what is injected when (``schedule``), what is asked when (``workload``), what an answer is worth (``judge``),
which errors no fault explains (``explain``), what was left over (``leaks``), and the summary. At the edge: the client,
the injectors, the processes and what they hold.
"""
