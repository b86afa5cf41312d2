//! A libcuda stand-in with fault injection and leak counting, for tests.
