//! The record and ELF readers, on a cubin made by hand: what they read, what they refuse, and that no bytes make them panic.

use quickcheck::quickcheck;
use warptile_spec::abi::{Declared, Forward, ForwardTma, RECORD_MAGIC, RecordWords};
use warptile_spec::elf::{EM_CUDA, Elf};
use warptile_spec::record::{ImageRecord, RecordError, SYMBOL};
use warptile_spec::{Features, Role, Schedule};

const ABI_VERSION: usize = 8;
const FLAGS: usize = 48;

/// An ELF64 of four sections, with `object` as the symbol `name`.
fn cubin(name: &str, object: &[u8]) -> Vec<u8> {
    let section_names = b"\0.shstrtab\0.strtab\0.symtab\0.nv.global.init\0";
    let symbol_names = [b"\0", name.as_bytes(), b"\0"].concat();
    let symbol = [
        &1_u32.to_le_bytes()[..],             // name
        &[1, 0],                              // info: object, other
        &4_u16.to_le_bytes(),                 // section
        &0_u64.to_le_bytes(),                 // offset
        &(object.len() as u64).to_le_bytes(), // size
    ]
    .concat();
    let contents: [(u32, u32, u32, &[u8]); 5] = [
        (0, 0, 0, &[]), // name, type, link, data
        (1, 3, 0, section_names),
        (11, 3, 0, &symbol_names),
        (19, 2, 2, &symbol),
        (27, 1, 0, object),
    ];

    let mut headers = Vec::new();
    let mut data = Vec::new();
    for (name, kind, link, bytes) in contents {
        let mut header = [0; 64];
        header[0..4].copy_from_slice(&name.to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&(64 + data.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[40..44].copy_from_slice(&link.to_le_bytes());
        headers.extend(header);
        data.extend_from_slice(bytes);
    }
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[ABI_VERSION] = 7;
    file[18..20].copy_from_slice(&EM_CUDA.to_le_bytes());
    file[40..48].copy_from_slice(&(64 + data.len() as u64).to_le_bytes());
    file[FLAGS..FLAGS + 4].copy_from_slice(&0x005a_0d5a_u32.to_le_bytes());
    file[58..60].copy_from_slice(&64_u16.to_le_bytes());
    file[60..62].copy_from_slice(&5_u16.to_le_bytes());
    file[62..64].copy_from_slice(&1_u16.to_le_bytes());
    [file, data, headers].concat()
}

fn words() -> RecordWords {
    RecordWords {
        magic: RECORD_MAGIC,
        role: Role::Forward.number(),
        schedule: Schedule::Persistent.number(),
        features: Features::SINKS.bits(),
        abi_hash: ForwardTma::HASH,
        param_bytes: size_of::<ForwardTma>() as u32,
        block_n: 80,
        shared_bytes: 9,
        ..RecordWords::default()
    }
}

fn record() -> Vec<u8> {
    bytemuck::bytes_of(&words()).to_vec()
}

#[test]
fn a_record_says_what_the_image_is_and_takes() {
    let read = ImageRecord::read(&cubin(SYMBOL, &record())).unwrap();
    assert_eq!(read.schedule, Schedule::Persistent);
    assert_eq!(read.features, Features::SINKS);
    assert_eq!((read.tiling.block_n, read.shared_bytes), (80, 9));
    assert!(read.takes::<ForwardTma>() && !read.takes::<Forward>());
}

#[test]
fn numbers_without_a_name_are_refused() {
    for words in [
        RecordWords {
            role: 99,
            ..words()
        },
        RecordWords {
            schedule: 0,
            ..words()
        },
        RecordWords {
            features: 1 << 31,
            ..words()
        },
    ] {
        assert!(matches!(
            ImageRecord::read(&cubin(SYMBOL, bytemuck::bytes_of(&words))),
            Err(RecordError::Unknown { .. })
        ));
    }
}

#[test]
fn other_objects_are_refused() {
    let read = |name, object: &[u8]| ImageRecord::read(&cubin(name, object)).unwrap_err();
    assert_eq!(read("something_else", &record()), RecordError::Missing);
    assert_eq!(
        read(SYMBOL, &record()[..40]),
        RecordError::Size { found: 40 }
    );
    let mut wrong = record();
    wrong[0] ^= 1;
    assert_eq!(
        read(SYMBOL, &wrong),
        RecordError::Magic {
            found: RECORD_MAGIC ^ 1
        }
    );
    assert!(matches!(
        ImageRecord::read(b"neither an ELF nor PTX"),
        Err(RecordError::Elf(_))
    ));
}

/// PTX with `list` as the initializer of a record of `size` bytes.
fn ptx(size: &str, list: &str) -> Vec<u8> {
    format!(".version 8.7\n.target sm_80\n.global .align 8 .b8 {SYMBOL}[{size}] = {{{list}}};\n\0")
        .into_bytes()
}

#[test]
fn ptx_carries_the_same_record_without_the_zeros_at_its_end() {
    let bytes = record();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let list: Vec<String> = bytes[..end].iter().map(u8::to_string).collect();
    let list = list.join(", ");
    let size = bytes.len().to_string();
    assert_eq!(
        ImageRecord::read(&ptx(&size, &list)),
        ImageRecord::read(&cubin(SYMBOL, &bytes))
    );
    for (size, list, expected) in [
        ("40", list.as_str(), RecordError::Size { found: 40 }),
        ("x", &list, RecordError::Initializer),
        (&size, "", RecordError::Initializer),
        (&size, "1, 256", RecordError::Initializer),
        (&size, &["0"; 99].join(","), RecordError::Initializer),
        (&size, "1", RecordError::Magic { found: 1 }),
    ] {
        assert_eq!(ImageRecord::read(&ptx(size, list)), Err(expected));
    }
    let without = b".version 8.7\n.target sm_80\n";
    assert_eq!(ImageRecord::read(without), Err(RecordError::Missing));
}

#[test]
fn the_target_is_read_from_either_encoding() {
    let target = |abi_version, flags: u32| {
        let mut bytes = cubin(SYMBOL, &record());
        bytes[ABI_VERSION] = abi_version;
        bytes[FLAGS..FLAGS + 4].copy_from_slice(&flags.to_le_bytes());
        Elf::parse(&bytes).unwrap().target()
    };
    // e_flags of cubins that NVRTC 12.8 made.
    for (abi_version, flags, expected) in [
        (7, 0x0050_0550, "sm_80"),
        (7, 0x0059_0559, "sm_89"),
        (7, 0x005a_055a, "sm_90"),
        (7, 0x005a_0d5a, "sm_90a"),
        (8, 0x0600_6402, "sm_100"),
        (8, 0x0600_640a, "sm_100a"),
        (8, 0x0600_7802, "sm_120"),
    ] {
        assert_eq!(target(abi_version, flags).as_deref(), Some(expected));
    }
    assert_eq!(target(9, 0), None);
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let whole = cubin(SYMBOL, &record());
    for len in 0..whole.len() {
        assert!(ImageRecord::read(&whole[..len]).is_err(), "{len} bytes");
    }
}

quickcheck! {
    fn damaged_files_never_panic(damage: Vec<(u16, u8)>) -> bool {
        let mut bytes = cubin(SYMBOL, &record());
        for (position, value) in damage {
            let position = usize::from(position) % bytes.len();
            bytes[position] = value;
        }
        // Either outcome is fine, as long as there is one.
        drop(ImageRecord::read(&bytes));
        true
    }
}
