//! Safe ownership over the CUDA driver API: contexts, streams, memory, modules, launches, graphs.
