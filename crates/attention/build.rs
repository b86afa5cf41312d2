//! Tells the CPU path whether this compiler knows AVX-512, which became stable after the oldest supported release.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(warptile_avx512)");
    if autocfg::new().probe_rustc_version(1, 89) {
        println!("cargo::rustc-cfg=warptile_avx512");
    }
}
