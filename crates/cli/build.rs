//! The origin of the program, as `warptile --version` prints it.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = in_repository().or_else(in_package);
    println!(
        "cargo::rustc-env=WARPTILE_BUILT_FROM={}",
        commit.as_deref().unwrap_or("unknown commit")
    );
    // Set by cargo for every build script.
    for name in ["TARGET", "PROFILE"] {
        let value = std::env::var(name).unwrap_or_default();
        println!("cargo::rustc-env=WARPTILE_{name}={value}");
    }
}

/// The output of git, if it succeeded.
fn git(arguments: &[&str]) -> Option<String> {
    // Another git may be at work here.
    let mut git = Command::new("git");
    let output = git
        .arg("--no-optional-locks")
        .args(arguments)
        .output()
        .ok()?;
    let text = output.status.success().then_some(output.stdout)?;
    Some(String::from_utf8(text).ok()?.trim().to_owned())
}

/// HEAD, marked if the crates differ from it. `None` if this is not the folder of our repository that it was in when this was
/// written: a vendored copy may lie in somebody else's repository.
fn in_repository() -> Option<String> {
    if git(&["rev-parse", "--show-prefix"])? != "crates/cli/" {
        return None;
    }
    // Moves with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    for path in [&log, ".."] {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = git(&["status", "--porcelain", "--", ".."])?.is_empty();
    Some(format!(
        "commit {commit}{}",
        if is_clean { "" } else { " with changes" }
    ))
}

/// The commit that `cargo package` recorded.
fn in_package() -> Option<String> {
    let recorded = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = recorded.split_once("\"sha1\": \"")?;
    Some(format!("commit {}", rest.get(..12)?))
}
