//! Tests that run the built program.

mod commands;
mod common;
mod errors;
mod gpu;
mod run;
