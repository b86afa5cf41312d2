//! Tells the CPU path whether this compiler knows AVX-512, which became stable after the oldest supported release, and whether tile
//! registers can be asked for on this system.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(warptile_avx512, warptile_amx)");
    if autocfg::new().probe_rustc_version(1, 89) {
        println!("cargo::rustc-cfg=warptile_avx512");
        let is = |variable, value| std::env::var(variable).is_ok_and(|found| found == value);
        if is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux") {
            println!("cargo::rustc-cfg=warptile_amx");
        }
    }
}
