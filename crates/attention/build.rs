//! Tells the CPU path whether this compiler knows AVX-512, which became stable after the oldest supported release, whether tile
//! registers can be asked for on this system, and whether every processor of the target has NEON.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(warptile_avx512, warptile_amx, warptile_neon)");
    let of_target = |variable: &str| std::env::var(variable).unwrap_or_default();
    let (arch, features) = (
        of_target("CARGO_CFG_TARGET_ARCH"),
        of_target("CARGO_CFG_TARGET_FEATURE"),
    );
    let is_little = of_target("CARGO_CFG_TARGET_ENDIAN") == "little";
    if arch == "aarch64" && is_little && features.split(',').any(|feature| feature == "neon") {
        println!("cargo::rustc-cfg=warptile_neon");
    }
    if autocfg::new().probe_rustc_version(1, 89) {
        println!("cargo::rustc-cfg=warptile_avx512");
        if arch == "x86_64" && of_target("CARGO_CFG_TARGET_OS") == "linux" {
            println!("cargo::rustc-cfg=warptile_amx");
        }
    }
}
