//! Every way to be wrong ends with a message and its exit code, never with a panic.

use crate::common::{
    Tensor, example, expect_code, f32_tensor, file, i32_matrix, i32_tensor, run, warptile,
    with_header,
};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn cpu_run(input: &Path) -> Command {
    let mut command = warptile();
    command.arg("run").arg(input).args(["--device", "cpu"]);
    command
}

/// Runs on a file of these bytes; standard error.
#[track_caller]
fn fails(code: i32, bytes: &[u8], flags: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input.safetensors");
    fs::write(&input, bytes).unwrap();
    let (_, stderr) = expect_code(code, cpu_run(&input).args(flags));
    assert!(stderr.starts_with("error: "), "{stderr}");
    stderr
}

const SHAPE: [usize; 4] = [1, 4, 2, 8];

fn qkv() -> [Tensor; 3] {
    ["q", "k", "v"].map(|name| f32_tensor(name, &SHAPE))
}

#[test]
fn a_missing_file() {
    let (_, stderr) = expect_code(4, &mut cpu_run(Path::new("no/such/file")));
    assert!(stderr.contains("no/such/file: cannot read"), "{stderr}");
}

#[test]
fn a_file_that_ends_early() {
    let whole = file(&qkv());
    // After any number of bytes: in the length, in the header, in the data.
    for length in [0, 1, 7, 8, 9, 50, whole.len() / 2, whole.len() - 1] {
        let stderr = fails(4, &whole[..length], &[]);
        assert!(
            stderr.contains("cannot be read as safetensors"),
            "{length}: {stderr}"
        );
    }
}

#[test]
fn a_file_with_something_after_its_end() {
    let mut bytes = file(&qkv());
    bytes.push(0);
    let stderr = fails(4, &bytes, &[]);
    let described = format!("its header describes only the first {}", bytes.len() - 1);
    assert!(stderr.contains(&described), "{stderr}");
}

/// The last of them would be taken in silence.
#[test]
fn two_tensors_of_one_name() {
    let entry = |end| {
        format!(
            "\"q\":{{\"dtype\":\"F32\",\"shape\":[{end}],\"data_offsets\":[0,{}]}}",
            4 * end
        )
    };
    for second in [0, 1] {
        let bytes = with_header(&format!("{{{},{}}}", entry(0), entry(second)));
        let stderr = fails(4, &bytes, &[]);
        assert!(stderr.contains("two tensors called q"), "{stderr}");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in.npz");
    expect_code(0, warptile().args(["gen", "q3 d8 f16", "-o"]).arg(&path));
    let mut bytes = fs::read(&path).unwrap();
    for at in 0..bytes.len() - 5 {
        if bytes[at..].starts_with(b"k.npy") {
            bytes[at] = b'q';
        }
    }
    fs::write(&path, bytes).unwrap();
    let (_, stderr) = expect_code(4, &mut cpu_run(&path));
    assert!(
        stderr.contains("two tensors in the archive have the same name"),
        "{stderr}"
    );
}

/// The message names the option of `run` and the tensor of the file.
#[test]
fn options_and_their_tensors() {
    let state = i32_tensor("dropout_state", &[0; 8]);
    let offsets = i32_tensor("block_offsets", &[0, 1]);
    for (extra, flags, expected) in [
        (
            vec![],
            &["--dropout", "0.5"][..],
            "--dropout needs a tensor dropout_state in the file",
        ),
        (
            vec![],
            &["--blocks", "64x64"],
            "--blocks needs a tensor block_offsets in the file",
        ),
        (
            vec![offsets.clone()],
            &["--blocks", "64x64"],
            "--blocks needs a tensor block_indices in the file",
        ),
        (
            vec![state],
            &[],
            "the file has dropout_state: give --dropout",
        ),
        (
            vec![offsets],
            &[],
            "the file has block_offsets: give --blocks",
        ),
    ] {
        let tensors = [qkv().to_vec(), extra].concat();
        let stderr = fails(2, &file(&tensors), flags);
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn values_that_an_option_does_not_take() {
    let difference = "a tolerance is a finite number that is not negative";
    let percentage = "a tolerance is a percentage from 0 to below 100";
    let seconds = "it is a number of seconds from 0 to 86400";
    for (arguments, expected) in [
        (&["compare", "a", "b", "--atol", "-1"][..], difference),
        (&["compare", "a", "b", "--rtol", "-0.5"], difference),
        (&["compare", "a", "b", "--atol", "nan"], difference),
        (&["compare", "a", "b", "--atol", "inf"], difference),
        (&["compare", "a", "b", "--tolerance", "-5"], percentage),
        (
            &["bench", "--compare", "a", "--tolerance", "-5"],
            percentage,
        ),
        (&["bench", "--seconds", "-1"], seconds),
        (&["bench", "--seconds", "nan"], seconds),
        (&["bench", "--seconds", "1e300"], seconds),
        (&["bench", "--samples", "-1"], "-1 is not in 1..=1000000"),
        (&["tune", "--budget", "-1"], "-1 is not in 0..=4294967295"),
        (
            &["verify", "--device", "-1"],
            "a device is auto, cpu or cuda:N",
        ),
        (
            &["compare", "x.json", "y.json", "--atol", "1"],
            "--atol says nothing about records of times (.json): x.json and y.json",
        ),
        (
            &["compare", "x.json", "y.json", "--rtol", "1"],
            "--rtol says nothing about records",
        ),
        (
            &["compare", "a", "b", "--tolerance", "5"],
            "--tolerance says nothing about files of tensors: a and b",
        ),
        (
            &["compare", "a", "b", "--chart"],
            "--chart says nothing about files",
        ),
        (
            &["gen", "q1", "-o", "no/such/"],
            "no/such/: there is no such folder; one for .npy files must exist",
        ),
        (&["plan", "q16 diagonal=3"], "it needs `mask=causal`"),
        (
            &["plan", "q16 splits=-256"],
            "`splits=N`: keys are split at",
        ),
    ] {
        let (_, stderr) = expect_code(2, warptile().args(arguments));
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_header_length_that_lies() {
    for length in [u64::MAX, u64::MAX - 7, 1 << 63, 1 << 40, 100_000_001, 3] {
        let mut bytes = file(&qkv());
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        fails(4, &bytes, &[]);
    }
}

#[test]
fn headers_that_lie() {
    let header = |dtype: &str, shape: &str, offsets: &str| {
        with_header(&format!(
            "{{\"q\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}"
        ))
    };
    for (name, bytes) in [
        ("no JSON", with_header("{")),
        ("a list", with_header("[]")),
        (
            "no text",
            [&[2_u8, 0, 0, 0, 0, 0, 0, 0][..], &[0xff, 0xff]].concat(),
        ),
        ("an unknown type", header("F12", "[1]", "[0,4]")),
        (
            "offsets past the end",
            header("F32", "[1,4,2,8]", "[0,256]"),
        ),
        ("offsets in reverse", header("F32", "[1]", "[4,0]")),
        (
            "offsets that overflow",
            header("F32", "[1]", "[0,18446744073709551615]"),
        ),
        ("negative offsets", header("F32", "[1]", "[-4,0]")),
        (
            "a shape that overflows",
            header("F32", "[4294967296,4294967296,4294967296,8]", "[0,0]"),
        ),
        (
            "a size in bits that overflows",
            header("F32", "[1,1,1,4611686018427387904]", "[0,0]"),
        ),
        ("a negative shape", header("F32", "[-1,4,2,8]", "[0,256]")),
        (
            "a shape without its data",
            header("F32", "[1,4,2,8]", "[0,0]"),
        ),
        ("deep nesting", with_header(&"[".repeat(100_000))),
    ] {
        let stderr = fails(4, &bytes, &[]);
        assert!(
            stderr.contains("cannot be read as safetensors"),
            "{name}: {stderr}"
        );
    }
}

#[test]
fn every_prefix_and_every_flipped_byte_ends_in_order() {
    // A small file, so that each of its bytes can be broken once.
    let whole = file(&["q", "k", "v"].map(|name| f32_tensor(name, &[1, 1, 1, 8])));
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("broken");
    for index in 0..header {
        let mut bytes = whole.clone();
        bytes[index] ^= 0x01;
        fs::write(&input, &bytes).unwrap();
        let (code, _, stderr) = run(&mut cpu_run(&input));
        assert!(
            [0, 2, 4].contains(&code),
            "byte {index}: code {code}, {stderr}"
        );
    }
}

#[test]
fn a_missing_tensor() {
    let stderr = fails(2, &file(&qkv()[..2]), &[]);
    assert!(
        stderr.contains("tensor v is missing; the file has only k, q"),
        "{stderr}"
    );
    let stderr = fails(2, &with_header("{}"), &[]);
    assert!(
        stderr.contains("tensor q is missing; the file has no tensors"),
        "{stderr}"
    );
}

#[test]
fn a_tensor_that_would_be_ignored() {
    let [q, k, v] = qkv();
    let tensors = [
        q,
        k,
        v,
        f32_tensor("key_mask", &[4, 4]),
        f32_tensor("Q", &[1]),
    ];
    let stderr = fails(2, &file(&tensors), &[]);
    assert!(
        stderr.contains("Q, key_mask are not used; an input file has q, k, v,"),
        "{stderr}"
    );
}

#[test]
fn what_a_file_says_reaches_no_terminal_raw_and_has_an_end() {
    // An escape sequence that clears the screen, as JSON writes it, in a name; and a name of 200,000 characters.
    let entry = |name: &str| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}")
    };
    let escape = "\\u001b[2J\\u0007";
    let long = "x".repeat(200_000);
    for name in [escape, &long] {
        let stderr = fails(2, &with_header(&format!("{{{}}}", entry(name))), &[]);
        assert!(
            stderr.len() < 2000 && !stderr.contains('\u{1b}'),
            "{stderr}"
        );
        // Broken: the library's own message names the tensor.
        let broken = entry(name).replace("[0,0]", "[0,4]");
        let stderr = fails(4, &with_header(&format!("{{{broken}}}")), &[]);
        assert!(
            stderr.len() < 2000 && !stderr.contains('\u{1b}'),
            "{stderr}"
        );
    }
    let many: Vec<String> = (0..3000).map(|i| entry(&format!("tensor{i}"))).collect();
    let stderr = fails(2, &with_header(&format!("{{{}}}", many.join(","))), &[]);
    assert!(
        stderr.len() < 2000 && stderr.contains("2992 more"),
        "{stderr}"
    );
    let deep = format!(
        "{{\"q\":{{\"dtype\":\"F32\",\"shape\":[{}0],\"data_offsets\":[0,0]}}}}",
        "1,".repeat(50_000)
    );
    assert!(fails(2, &with_header(&deep), &[]).len() < 2000);
}

#[test]
fn a_wrong_rank() {
    let mut tensors = qkv();
    tensors[1].2 = vec![4, 2, 8];
    let stderr = fails(2, &file(&tensors), &[]);
    assert!(
        stderr.contains("k has shape [4, 2, 8]; 4 dimensions"),
        "{stderr}"
    );
}

#[test]
fn a_wrong_type() {
    let mut tensors = qkv();
    for tensor in &mut tensors {
        tensor.1 = "I32";
    }
    let stderr = fails(2, &file(&tensors), &[]);
    assert!(
        stderr.contains(
            "q has elements of type I32; attention takes F16, BF16 and F32: in NumPy, save"
        ),
        "{stderr}"
    );

    let half = Tensor("v", "BF16", SHAPE.to_vec(), vec![0; 128]);
    let [q, k, _] = qkv();
    let stderr = fails(2, &file(&[q, k, half]), &[]);
    assert!(
        stderr.contains("v has elements of type BF16, but q has F32"),
        "{stderr}"
    );
}

/// A tensor of e4m3 in the shape of the others.
fn e4m3(name: &'static str) -> Tensor {
    Tensor(name, "F8_E4M3", SHAPE.to_vec(), vec![0x38; 64])
}

fn scale(name: &'static str, values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor(name, "F32", vec![values.len()], bytes)
}

#[test]
fn keys_in_e4m3_and_their_scales() {
    let q = || f32_tensor("q", &SHAPE);
    let wrong = |tensors: Vec<Tensor>, expected: &str| {
        let stderr = fails(2, &file(&[vec![q()], tensors].concat()), &[]);
        assert!(stderr.contains(expected), "{stderr}");
    };
    let kv = || vec![e4m3("k"), e4m3("v")];
    let with =
        |k: &[f32], v: &[f32]| [kv(), vec![scale("k_scale", k), scale("v_scale", v)]].concat();
    wrong(kv(), "k_scale is missing; k and v of type F8_E4M3");
    wrong(
        vec![
            e4m3("k"),
            f32_tensor("v", &SHAPE),
            scale("k_scale", &[1.0]),
            scale("v_scale", &[1.0]),
        ],
        "v has elements of type F32, but q has F32; keys and values both have q's type, or both F8_E4M3",
    );
    wrong(
        vec![f32_tensor("k", &SHAPE), e4m3("v")],
        "v has elements of type F8_E4M3, but q has F32",
    );
    wrong(
        vec![
            f32_tensor("k", &SHAPE),
            f32_tensor("v", &SHAPE),
            scale("v_scale", &[1.0]),
        ],
        "v_scale is there, but k has elements of type F32",
    );
    wrong(
        with(&[1.0], &[1.0, 2.0, 3.0]),
        "v_scale has 3 numbers; it needs 1, or one for each of the 2 key/value heads",
    );
    wrong(
        with(&[1.0, 0.0], &[1.0]),
        "k_scale[1] is 0, but must be a finite number above 0",
    );
    let mut of_rank_2 = with(&[1.0], &[1.0]);
    of_rank_2[2].2 = vec![1, 1];
    wrong(
        of_rank_2,
        "k_scale has shape [1, 1]; it must be [], [1] or [key/value heads]",
    );
    let mut scalar = with(&[1.0], &[1.0, 2.0]);
    scalar[2].2 = Vec::new();
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input.safetensors");
    fs::write(&input, file(&[vec![q()], scalar].concat())).unwrap();
    expect_code(0, &mut cpu_run(&input));
}

#[test]
fn shapes_that_do_not_match() {
    for (shape, expected) in [
        ([2, 4, 2, 8], "batch"),
        ([1, 4, 3, 8], "heads"),
        ([1, 4, 2, 16], "head size"),
    ] {
        let [q, _, v] = qkv();
        let stderr = fails(2, &file(&[q, f32_tensor("k", &shape), v]), &[]);
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn head_sizes_without_a_kernel() {
    for (head_dim, advice) in [
        (0, "at least 8"),
        (4, "a multiple of 8"),
        (59, "a multiple of 8"),
        (520, "the largest head size is 512"),
    ] {
        let tensors = ["q", "k", "v"].map(|name| f32_tensor(name, &[1, 2, 1, head_dim]));
        let stderr = fails(2, &file(&tensors), &[]);
        assert!(stderr.contains(advice), "{stderr}");
    }
}

#[test]
fn row_offsets_that_break_a_rule() {
    let with = |q: Tensor, k: Tensor| {
        let [a, b, c] = qkv();
        file(&[a, b, c, q, k])
    };
    let good = || i32_tensor("cu_seqlens_k", &[0, 4]);
    for (offsets, expected) in [
        (&[0, 3, 2][..], "cu_seqlens_q"),
        (&[0, 5], "cu_seqlens_q[1] is 5"),
        (&[1, 4], "cu_seqlens_q[0]"),
        (&[], "cu_seqlens_q"),
    ] {
        let stderr = fails(2, &with(i32_tensor("cu_seqlens_q", offsets), good()), &[]);
        assert!(stderr.contains(expected), "{stderr}");
    }
    let large = Tensor(
        "cu_seqlens_q",
        "I64",
        vec![2],
        [0_i64, 1 << 40]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect(),
    );
    assert!(fails(2, &with(large, good()), &[]).contains("which no i32 holds"));
    let floats = Tensor("cu_seqlens_q", "F32", vec![2], vec![0; 8]);
    assert!(fails(2, &with(floats, good()), &[]).contains("it must have I32, U32 or I64"));
    let square = Tensor("cu_seqlens_q", "I32", vec![1, 2], vec![0; 8]);
    assert!(fails(2, &with(square, good()), &[]).contains("it must be [batch + 1]"));
    let [q, k, v] = qkv();
    let stderr = fails(2, &file(&[q, k, v, good()]), &[]);
    assert!(
        stderr.contains("must both be there, or neither"),
        "{stderr}"
    );
}

#[test]
fn slopes_that_do_not_fit() {
    let with = |slopes: Tensor| {
        let [q, k, v] = qkv();
        file(&[q, k, v, slopes])
    };
    let stderr = fails(2, &with(f32_tensor("alibi_slopes", &[3])), &[]);
    assert!(stderr.contains("alibi_slopes has shape [3]"), "{stderr}");
    let stderr = fails(2, &with(i32_tensor("alibi_slopes", &[1, 2])), &[]);
    assert!(stderr.contains("it must have F32"), "{stderr}");
    let stderr = fails(2, &with(f32_tensor("alibi_slopes", &[1, 1, 2])), &[]);
    assert!(stderr.contains("[heads] or [batch, heads]"), "{stderr}");
    // As many as there should be, for two sequences of four heads.
    for shape in [&[4, 2][..], &[8]] {
        let mut tensors: Vec<Tensor> = ["q", "k", "v"]
            .map(|name| f32_tensor(name, &[2, 3, 4, 8]))
            .into();
        tensors.push(f32_tensor("alibi_slopes", shape));
        let stderr = fails(2, &file(&tensors), &[]);
        assert!(stderr.contains("for 4 heads"), "{shape:?}: {stderr}");
    }
}

#[test]
fn other_tensors_that_do_not_fit() {
    let with = |extra: Tensor| {
        let [q, k, v] = qkv();
        fails(2, &file(&[q, k, v, extra]), &[])
    };
    for (extra, expected) in [
        (f32_tensor("sinks", &[3]), "sinks has 3 values"),
        (f32_tensor("sinks", &[1, 2]), "it must be [heads]"),
        (i32_tensor("sinks", &[1, 2]), "it must have F32"),
        (
            f32_tensor("bias", &[4, 4]),
            "it must be [batch, heads, queries, keys]",
        ),
        (
            f32_tensor("bias", &[1, 3, 4, 4]),
            "bias has heads 3, but the call has 2",
        ),
        (i32_tensor("bias", &[1, 2]), "it must have F32"),
        (f32_tensor("mask", &[1, 2, 4, 4]), "it must have BOOL or U8"),
        (
            Tensor("mask", "U8", vec![1, 3, 4, 4], vec![1; 48]),
            "error: mask has heads 3, but the call has 2",
        ),
    ] {
        let stderr = with(extra);
        assert!(stderr.contains(expected), "{stderr}");
    }
    let packed = [
        f32_tensor("q", &[4, 2, 8]),
        f32_tensor("k", &[4, 2, 8]),
        f32_tensor("v", &[4, 2, 8]),
        i32_tensor("cu_seqlens_q", &[0, 4]),
        i32_tensor("cu_seqlens_k", &[0, 4]),
        f32_tensor("bias", &[1, 1, 4, 4]),
    ];
    let stderr = fails(2, &file(&packed), &[]);
    assert!(stderr.contains("bias needs dense tensors"), "{stderr}");
}

#[test]
fn numbers_that_make_no_sense() {
    let bytes = file(&qkv());
    assert!(fails(2, &bytes, &["--scale", "NaN"]).contains("scale is NaN"));
    assert!(fails(2, &bytes, &["--scale", "-inf"]).contains("scale is -inf"));
    assert!(fails(2, &bytes, &["--softcap", "0"]).contains("softcap is 0"));
    assert!(fails(2, &bytes, &["--softcap", "-3"]).contains("softcap is -3"));
    let every_300 = fails(2, &bytes, &["--splits", "300"]);
    assert!(
        every_300.contains("splits are every 300 keys"),
        "{every_300}"
    );
    let no_number = fails(2, &bytes, &["--splits", "x"]);
    assert!(
        no_number.contains("or a number of keys such as 512"),
        "{no_number}"
    );
    let stderr = fails(2, &bytes, &["--diagonal", "top-left"]);
    assert!(stderr.contains("needs --causal or --window"), "{stderr}");
    let stderr = fails(2, &bytes, &["--causal", "--diagonal", "middle"]);
    assert!(stderr.contains("not a diagonal: bottom-right"), "{stderr}");
}

#[test]
fn usage_errors_are_code_2() {
    for arguments in [
        &[][..],
        &["fly"],
        &["run"],
        &["run", "x", "--window", "3"],
        &["run", "x", "--causal=left"],
        &["run", "x", "--device", "tpu"],
        &["run", "x", "--layout", "sbhd"],
        &["verify", "--count", "0"],
        &["verify", "--case", "lenght=3 q1"],
        &["bench", "--samples", "0"],
        &["bench", "--samples", "4294967295"],
        &["verify", "--sync", "each"],
        &["verify", "--case", "b1073741824 q0 k0 h1073741824 d8"],
        &["gen", "q3"],
        &["completions", "dos"],
    ] {
        let (_, stderr) = expect_code(2, warptile().args(arguments));
        assert!(!stderr.is_empty());
    }
}

#[test]
fn numbers_beyond_a_limit_are_told_it() {
    let most = "4294967295";
    let beyond = |arguments: &[&str]| expect_code(2, warptile().args(arguments)).1;
    let plan = ["plan", "q8 k8 d64 f16", "--gpu", "h200"];
    for arguments in [&plan[..], &["verify"]] {
        let stderr = beyond(&[arguments, &["--multiprocessors", most]].concat());
        assert!(
            stderr.contains("'--multiprocessors <N>': 4294967295 is not in 1..=2048"),
            "{stderr}"
        );
    }
    for (arguments, words) in [
        (
            &["plan", "q8 k8 d64 f16 sms=2049", "--gpu", "h200"][..],
            "sms is 2049; a GPU has 1 to 2048 multiprocessors",
        ),
        (
            &["verify", "--threads", "65535"],
            "'--threads <N>': 65535 is not in 1..=1024",
        ),
        (
            &["bench", "--device", "cpu", "--seconds", "1e300"],
            "it is a number of seconds from 0 to 86400",
        ),
    ] {
        let stderr = beyond(arguments);
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn an_unknown_kernel() {
    let stderr = fails(2, &file(&qkv()), &["--kernel", "scalar_d63"]);
    assert!(stderr.contains("scalar_d63"), "{stderr}");
}

#[test]
fn a_device_that_is_not_there_is_code_3() {
    // No machine has this many GPUs, and most that run this have no driver at all.
    let mut command = warptile();
    command
        .arg("run")
        .arg(example("minilm_qkv.safetensors"))
        .args(["--device", "cuda:4096"]);
    let (_, stderr) = expect_code(3, &mut command);
    assert!(stderr.starts_with("error: cuda:4096: "), "{stderr}");
}

#[test]
fn a_driver_that_is_no_driver_is_code_3() {
    // Whatever the machine has, the override comes first, and this is not a library.
    let mut command = warptile();
    command
        .arg("run")
        .arg(example("minilm_qkv.safetensors"))
        .args(["--device", "cuda:0"])
        .env("WARPTILE_LIBCUDA", example("README.md"));
    let (_, stderr) = expect_code(3, &mut command);
    assert!(stderr.contains("README.md"), "{stderr}");
    // `auto` takes the CPU instead.
    let mut command = warptile();
    command
        .arg("run")
        .arg(example("minilm_qkv.safetensors"))
        .env("WARPTILE_LIBCUDA", example("README.md"));
    let (stdout, stderr) = expect_code(0, &mut command);
    assert!(stdout.contains("ran      cpu on cpu"), "{stdout}");
    assert!(
        stderr.starts_with("note: ") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn an_output_that_cannot_be_written_is_code_4() {
    let (_, stderr) = expect_code(
        4,
        cpu_run(&example("minilm_qkv.safetensors")).args(["-o", "no/such/directory/out"]),
    );
    assert!(
        stderr.contains("no/such/directory/out: cannot write"),
        "{stderr}"
    );
    // Before the work: the input is not even looked for.
    let (_, stderr) = expect_code(
        4,
        cpu_run(Path::new("no/such/input")).args(["-o", "no/such/directory/out"]),
    );
    assert!(stderr.contains("cannot write"), "{stderr}");
    for command in [&["verify"][..], &["bench"], &["info"]] {
        let (stdout, stderr) = expect_code(
            4,
            warptile()
                .args(command)
                .args(["--json", "no/such/directory/x"]),
        );
        assert!(stderr.contains("cannot write"), "{stdout}{stderr}");
    }
}

#[test]
fn an_output_that_is_an_input_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    let bytes = file(&qkv());
    fs::write(&input, &bytes).unwrap();
    let same = dir.path().join(".").join("input");
    let (_, stderr) = expect_code(2, cpu_run(&input).arg("-o").arg(&same));
    assert!(
        stderr.contains("would replace a file that is read"),
        "{stderr}"
    );
    assert_eq!(fs::read(&input).unwrap(), bytes);
}

#[test]
fn expectations_that_do_not_fit_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("qkv");
    let expected = dir.path().join("expected");
    fs::write(&input, file(&qkv())).unwrap();
    for (tensors, message) in [
        (vec![f32_tensor("out", &[1, 4, 2, 16])], "out has shape"),
        (vec![f32_tensor("lse", &[1, 2, 5])], "lse has shape"),
        (
            vec![i32_tensor("out", &[1]), f32_tensor("x", &[1])],
            "out has shape",
        ),
        (vec![f32_tensor("x", &[1])], "tensor out is missing"),
    ] {
        fs::write(&expected, file(&tensors)).unwrap();
        let (_, stderr) = expect_code(2, cpu_run(&input).arg("--expect").arg(&expected));
        assert!(stderr.contains(message), "{stderr}");
    }
    // --causal looks for out_causal, and does not settle for out.
    fs::write(&expected, file(&[f32_tensor("out", &SHAPE)])).unwrap();
    let (_, stderr) = expect_code(
        2,
        cpu_run(&input)
            .arg("--causal")
            .arg("--expect")
            .arg(&expected),
    );
    assert!(stderr.contains("tensor out_causal is missing"), "{stderr}");
}

/// A file of one query for each of two sequences, and a cache of 5 pages of 4 rows; `edit` replaces tensors by name.
fn cache(edit: &[Tensor]) -> Vec<u8> {
    let mut tensors = vec![
        f32_tensor("q", &[2, 1, 2, 8]),
        f32_tensor("k_pages", &[5, 4, 2, 8]),
        f32_tensor("v_pages", &[5, 4, 2, 8]),
        i32_matrix("block_table", [2, 2], &[3, 1, 0, -1]),
        i32_tensor("key_lengths", &[7, 4]),
    ];
    for Tensor(name, dtype, shape, data) in edit {
        tensors.retain(|tensor| tensor.0 != *name);
        tensors.push(Tensor(name, dtype, shape.clone(), data.clone()));
    }
    file(&tensors)
}

#[test]
fn caches_that_break_a_rule() {
    assert!(fails(2, &cache(&[f32_tensor("zebra", &[1])]), &[]).contains("zebra is not used"));
    for (edit, expected) in [
        (
            i32_matrix("block_table", [2, 2], &[3, 1, 5, -1]),
            "block_table[2] is 5, but k has 5 pages; it is entry 0 of sequence 1, whose 4 keys need 1",
        ),
        (
            i32_tensor("block_table", &[3, 1]),
            "[batch, pages of a sequence]",
        ),
        (
            f32_tensor("block_table", &[2, 2]),
            "it must have I32, U32 or I64",
        ),
        (
            i32_matrix("block_table", [3, 1], &[3, 1, 0]),
            "block_table has batch 3, but q has 2",
        ),
        (i32_tensor("key_lengths", &[9, 4]), "key_lengths[0] is 9"),
        (
            i32_tensor("key_lengths", &[7]),
            "key_lengths[1] ends the list",
        ),
        (
            f32_tensor("k_pages", &[5, 2, 8]),
            "[pages, page rows, heads, head size]",
        ),
        (
            f32_tensor("v_pages", &[4, 4, 2, 8]),
            "v has pages 4, but k has 5",
        ),
        (
            f32_tensor("k", &[5, 4, 2, 8]),
            "either k and v or k_pages and v_pages",
        ),
        (
            i32_tensor("cu_seqlens_k", &[0, 4, 8]),
            "keys in pages are not packed",
        ),
    ] {
        let stderr = fails(2, &cache(&[edit]), &[]);
        assert!(stderr.contains(expected), "{stderr}");
    }
    let large = ["k_pages", "v_pages"].map(|name| f32_tensor(name, &[1, 257, 2, 8]));
    let stderr = fails(2, &cache(&large), &[]);
    assert!(
        stderr.contains("k_pages has pages of 257 rows; a page has 1 to 256"),
        "{stderr}"
    );
    let stderr = fails(
        2,
        &file(&[
            f32_tensor("q", &[1, 1, 2, 8]),
            f32_tensor("k_pages", &[1, 1, 2, 8]),
        ]),
        &[],
    );
    assert!(stderr.contains("tensor block_table is missing"), "{stderr}");
}

#[test]
fn words_of_a_problem_come_with_advice() {
    for (arguments, advice) in [
        (
            &["plan", "b4", "q4096", "k4096"][..],
            "put all its words in quotes",
        ),
        (
            &["bench", "--shape", "b4", "h32/8"],
            "put all its words in quotes",
        ),
        (&["plan", "q4096 fp16"], "did you mean `f16`?"),
        (&["plan", ""], "a problem needs lengths: qN, kN"),
    ] {
        let (_, stderr) = expect_code(2, warptile().args(arguments));
        assert!(stderr.contains(advice), "{arguments:?}: {stderr}");
    }
    let (_, stderr) = expect_code(2, warptile().args(["plan", "q1", "zebra"]));
    assert!(!stderr.contains("quotes"), "{stderr}");
}

/// Minutes of computing would come first otherwise, and a file of gigabytes.
#[test]
fn a_problem_without_a_reference_is_refused_first() {
    let dir = tempfile::tempdir().unwrap();
    let [inputs, results] = ["qkv", "right"].map(|name| dir.path().join(format!("{name}.npz")));
    let problem = "q40000 h8 d128 f16";
    let mut generate = warptile();
    generate.args(["gen", problem, "-o"]).arg(inputs);
    generate.arg("--expected").arg(results);
    let verify = |device: [&str; 2], problem: &str| {
        let mut command = warptile();
        command.arg("verify").args(device).args(["--case", problem]);
        command
    };
    for mut command in [
        generate,
        verify(["--device", "cpu"], problem),
        verify(["--device", "cpu"], "q20000 h8 d128 f16 backward"),
        verify(["--devices", "cpu,cpu"], problem),
    ] {
        let start = Instant::now();
        let (_, stderr) = expect_code(2, &mut command);
        assert!(stderr.contains("multiply-adds is too much"), "{stderr}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// clap requires nothing that conflicts with what is given: without checks of ours these would be taken and ignored.
#[test]
fn options_that_would_be_ignored() {
    const PROBLEM: [&str; 2] = ["--shape", "q8 d8"];
    let several = ["--engine nccl", "--scheme heads", "--sharding zigzag"];
    for option in several {
        let option: Vec<_> = option.split(' ').collect();
        for command in [
            &["bench", "--device", "cpu", PROBLEM[0], PROBLEM[1]][..],
            &["tune", "--device", "cuda:0", PROBLEM[0], PROBLEM[1]],
            &["verify", "--device", "cpu", "--count", "1"],
            &["plan", "q8 d8", "--gpu", "h100"],
        ] {
            let (_, stderr) = expect_code(2, warptile().args(command).args(&option));
            let expected = format!("{} is for several devices: it needs --devices", option[0]);
            assert!(stderr.contains(&expected), "{command:?}: {stderr}");
        }
    }
    let lead = ["bench", "--device", "cpu", "--lead", "64"];
    let (_, stderr) = expect_code(2, warptile().args(lead).args(PROBLEM));
    let expected = "--lead is for several devices: it needs --devices";
    assert!(stderr.contains(expected), "{stderr}");
    for (command, option) in [
        (
            "verify --devices cpu,cpu --settings at-once=2",
            "--settings",
        ),
        ("verify --once --sync end", "--sync"),
        ("verify --tile --device cpu --sync end", "--sync"),
        ("verify --devices cpu,cpu --sync end", "--sync"),
        ("bench --devices cpu,cpu --tolerance 5", "--tolerance"),
    ] {
        let (_, stderr) = expect_code(2, warptile().args(command.split(' ')));
        let named = stderr.contains("cannot be used with") && stderr.contains(option);
        assert!(named, "{command}: {stderr}");
    }
}
