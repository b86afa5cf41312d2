//! Gives the shared library the name that programs linked with it ask for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        // The interface may change with every minor version below 1.0, so the name has both numbers.
        let number = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
        let (major, minor) = (number("MAJOR"), number("MINOR"));
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libwarptile.so.{major}.{minor}");
    }
}
