//! Hand-written, dlopened table of the CUDA driver API.
