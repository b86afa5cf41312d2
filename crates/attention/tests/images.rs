//! What the compiled images say of themselves, held against this crate's constants.

use warptile::AttentionParams;
use warptile::tiling::TILINGS;
use warptile_kernels::record::{ImageRecord, PARAM_MEMBERS};
use warptile_kernels::{Family, Target, catalog};

#[test]
fn every_image_has_the_parameter_block_at_the_same_offsets() {
    let names: Vec<&str> = AttentionParams::MEMBERS
        .iter()
        .map(|&(name, _)| name)
        .collect();
    let mut read = 0;
    for image in catalog()
        .iter()
        .filter(|image| !matches!(image.target, Target::Ptx(_)))
    {
        let record = ImageRecord::read(&image.bytes().unwrap()).unwrap();
        // Where the block lies in what the kernel takes, and how large that is: for wgmma behind three tensor maps of 128
        // bytes and before two words, aligned to 64.
        let (base, bytes) = match image.family {
            Family::Wgmma => (3 * 128, 640),
            _ => (0, size_of::<AttentionParams>() as u64),
        };
        for (member, offset) in PARAM_MEMBERS.iter().zip(record.param_offsets) {
            assert_eq!(
                offset - base,
                rust_offset(member) as u64,
                "{}: {member}",
                image.name
            );
        }
        assert_eq!(u64::from(record.param_bytes), bytes, "{}", image.name);
        assert_eq!(record.param_bytes, image.param_bytes, "{}", image.name);
        read += 1;
    }
    assert!(read > 0, "the catalog has no cubin; {names:?}");
}

/// Offset of a member that the record lists, `q_stride.row` as well as `scale`.
fn rust_offset(member: &str) -> usize {
    let (name, inner) = match member.split_once('.') {
        None => (member, 0),
        Some((name, "batch")) => (name, 0),
        Some((name, "row")) => (name, 8),
        Some((name, "head")) => (name, 16),
        Some(other) => panic!("unknown member {other:?}"),
    };
    let (_, offset) = AttentionParams::MEMBERS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a member of the block");
    offset + inner
}

#[test]
fn every_named_tiling_is_compiled_as_the_type_says() {
    for tiling in TILINGS {
        for family in [Family::Scalar, Family::Wmma] {
            let kernel = format!("{family}_{}", tiling.name);
            let images: Vec<_> = catalog()
                .iter()
                .filter(|image| image.kernel == kernel)
                .collect();
            assert!(!images.is_empty(), "{kernel} is not in the catalog");
            for image in images {
                let compiled = image.tiling;
                assert_eq!(
                    [
                        compiled.block_m,
                        compiled.block_n,
                        compiled.head_dim,
                        compiled.stages,
                        compiled.warps
                    ]
                    .map(|n| n as usize),
                    [
                        tiling.block_m,
                        tiling.block_n,
                        tiling.head_dim,
                        tiling.stages,
                        tiling.warps
                    ],
                    "{}",
                    image.name
                );
                assert_eq!(
                    [compiled.k_stride, compiled.v_stride].map(|n| n as usize),
                    [tiling.k_stride, tiling.v_stride],
                    "{}",
                    image.name
                );
            }
        }
    }
}
