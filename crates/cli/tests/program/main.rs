//! Tests that run the built program.

mod commands;
mod common;
mod devices;
mod errors;
mod files;
mod folder;
mod gpu;
#[cfg(unix)]
mod interrupt;
mod options;
mod plan;
#[cfg(target_os = "linux")]
mod question;
mod records;
mod run;
mod standin;
#[cfg(unix)]
mod trial;
mod tune;
