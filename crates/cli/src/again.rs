//! This program once more, in another process.

use std::io;
use std::path::PathBuf;

/// The file of the program that runs, also where a build has put another program in its place since, or nothing.
///
/// # Errors
/// When the system does not tell.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    // The link of this process by its number: /proc/self would be that of a tool that starts the program.
    let running = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    match running.exists() {
        true => Ok(running),
        false => std::env::current_exe(), // not Linux
    }
}
