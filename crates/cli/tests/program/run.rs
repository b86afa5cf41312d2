//! `warptile run` on good input.

use crate::common::{
    Tensor, example, expect_code, f32_tensor, file, i32_matrix, i32_tensor, read_f32, warptile,
};
use std::fs;
use std::path::Path;

fn cpu_run(input: &Path) -> std::process::Command {
    let mut command = warptile();
    command.arg("run").arg(input).args(["--device", "cpu"]);
    command
}

#[test]
fn the_example_is_as_expected() {
    for flags in [
        &[][..],
        &["--causal"],
        &["--causal", "--diagonal=bottom-right"],
        &["--causal", "--diagonal", "top-left"],
        &["--causal", "--diagonal=0"],
    ] {
        let (stdout, _) = expect_code(
            0,
            cpu_run(&example("minilm_qkv.safetensors"))
                .arg("--expect")
                .arg(example("minilm_expected.safetensors"))
                .args(flags),
        );
        assert_eq!(stdout.matches(" is as expected").count(), 2, "{stdout}");
        assert!(stdout.contains("ran      cpu on cpu in "), "{stdout}");
    }
}

#[test]
fn once_is_once() {
    let input = example("minilm_qkv.safetensors");
    for (flags, others) in [(&[][..], 1), (&["--once"], 0)] {
        let (stdout, _) = expect_code(0, cpu_run(&input).args(flags));
        assert_eq!(stdout.matches("(median of ").count(), others, "{stdout}");
    }
}

#[test]
fn another_result_than_expected_is_code_1() {
    // Another mask, and another scale: both are attention, neither is what the file says.
    for flags in [&["--window", "5,5"][..], &["--scale", "0.2"]] {
        let (stdout, stderr) = expect_code(
            1,
            cpu_run(&example("minilm_qkv.safetensors"))
                .arg("--expect")
                .arg(example("minilm_expected.safetensors"))
                .args(flags),
        );
        assert!(stdout.contains("NOT as expected"), "{stdout}");
        assert!(
            stderr.contains("out and lse differ by more than is allowed from"),
            "{stderr}"
        );
    }
}

#[test]
fn nan_is_never_as_expected() {
    let dir = tempfile::tempdir().unwrap();
    let (input, expected) = (dir.path().join("qkv"), dir.path().join("expected"));
    let mut q = f32_tensor("q", &[1, 4, 1, 8]);
    q.3[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(
        &input,
        file(&[
            q,
            f32_tensor("k", &[1, 4, 1, 8]),
            f32_tensor("v", &[1, 4, 1, 8]),
        ]),
    )
    .unwrap();
    let nan = f32::NAN.to_le_bytes().repeat(32);
    fs::write(
        &expected,
        file(&[Tensor("out", "F32", vec![1, 4, 1, 8], nan)]),
    )
    .unwrap();
    expect_code(1, cpu_run(&input).arg("--expect").arg(&expected));
}

#[test]
fn what_is_written_is_what_is_expected() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    expect_code(
        0,
        cpu_run(&example("minilm_qkv.safetensors"))
            .arg("-o")
            .arg(&out),
    );
    let bytes = fs::read(&out).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("out").unwrap().dtype(), safetensors::Dtype::F16);
    assert_eq!(file.tensor("out").unwrap().shape(), [1, 301, 12, 32]);
    assert_eq!(file.tensor("lse").unwrap().shape(), [1, 12, 301]);
    let (stdout, _) = expect_code(
        0,
        cpu_run(&example("minilm_qkv.safetensors"))
            .arg("--expect")
            .arg(&out),
    );
    assert!(stdout.contains("compare  out is as expected"), "{stdout}");
}

/// [batch, seq, heads, head_dim] to [batch, heads, seq, head_dim] of f32 bytes.
fn transposed(Tensor(name, dtype, shape, data): Tensor) -> Tensor {
    let [b, s, h, d] = shape[..] else {
        panic!("4 dimensions")
    };
    let mut moved = Vec::with_capacity(data.len());
    for b in 0..b {
        for h in 0..h {
            for row in 0..s {
                let start = 4 * d * (h_index(b, row, h, s, shape[2]));
                moved.extend_from_slice(&data[start..start + 4 * d]);
            }
        }
    }
    Tensor(name, dtype, vec![b, h, s, d], moved)
}

fn h_index(batch: usize, row: usize, head: usize, rows: usize, heads: usize) -> usize {
    (batch * rows + row) * heads + head
}

#[test]
fn bhsd_files_give_the_same_answer_transposed() {
    let dir = tempfile::tempdir().unwrap();
    let (q, kv) = ([2, 5, 4, 16], [2, 7, 2, 16]);
    let tensors = || {
        [
            f32_tensor("q", &q),
            f32_tensor("k", &kv),
            f32_tensor("v", &kv),
        ]
    };
    let path = |name: &str| dir.path().join(name);
    fs::write(path("bshd"), file(&tensors())).unwrap();
    fs::write(path("bhsd"), file(&tensors().map(transposed))).unwrap();
    expect_code(0, cpu_run(&path("bshd")).arg("-o").arg(path("bshd_out")));
    expect_code(
        0,
        cpu_run(&path("bhsd"))
            .args(["--layout", "bhsd", "-o"])
            .arg(path("bhsd_out")),
    );
    let (bshd, bhsd) = (
        fs::read(path("bshd_out")).unwrap(),
        fs::read(path("bhsd_out")).unwrap(),
    );
    assert_eq!(read_f32(&bshd, "lse"), read_f32(&bhsd, "lse"));
    let (shape, values) = read_f32(&bshd, "out");
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let Tensor(_, _, shape, bytes) = transposed(Tensor("out", "F32", shape, bytes));
    let (found_shape, found) = read_f32(&bhsd, "out");
    assert_eq!(found_shape, shape);
    assert_eq!(
        found
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>(),
        bytes
    );
    // And --expect reads the layout it wrote.
    expect_code(
        0,
        cpu_run(&path("bhsd"))
            .args(["--layout", "bhsd", "--expect"])
            .arg(path("bhsd_out")),
    );
}

#[test]
fn packed_sequences_equal_dense_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // One sequence of 5 queries and 7 keys, dense and as a packed batch with an empty one next to it.
    fs::write(
        path("dense"),
        file(&[
            f32_tensor("q", &[1, 5, 2, 8]),
            f32_tensor("k", &[1, 7, 2, 8]),
            f32_tensor("v", &[1, 7, 2, 8]),
        ]),
    )
    .unwrap();
    fs::write(
        path("packed"),
        file(&[
            f32_tensor("q", &[5, 2, 8]),
            f32_tensor("k", &[7, 2, 8]),
            f32_tensor("v", &[1, 7, 2, 8]),
            i32_tensor("cu_seqlens_q", &[0, 0, 5]),
            i32_tensor("cu_seqlens_k", &[0, 0, 7]),
        ]),
    )
    .unwrap();
    for name in ["dense", "packed"] {
        expect_code(
            0,
            cpu_run(&path(name))
                .arg("--causal")
                .arg("-o")
                .arg(path(&format!("{name}_out"))),
        );
    }
    let (dense, packed) = (
        fs::read(path("dense_out")).unwrap(),
        fs::read(path("packed_out")).unwrap(),
    );
    assert_eq!(read_f32(&packed, "out").0, [5, 2, 8]);
    assert_eq!(read_f32(&packed, "lse").0, [2, 5]);
    for name in ["out", "lse"] {
        assert_eq!(read_f32(&dense, name).1, read_f32(&packed, name).1);
    }
}

#[test]
fn pages_equal_dense_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Two sequences of 7 and 4 keys, in pages of 4 rows; the second sequence has one page.
    let dense = |name| f32_tensor(name, &[2, 8, 2, 8]);
    let q = || f32_tensor("q", &[2, 3, 2, 8]);
    let lengths = || i32_tensor("key_lengths", &[7, 4]);
    let tensors = [q(), dense("k"), dense("v"), lengths()];
    fs::write(path("dense"), file(&tensors)).unwrap();
    let order = [2, usize::MAX, 0, 1];
    let in_pages = |name, tensor: Tensor| {
        let page = 4 * 2 * 8 * 4;
        let data = order
            .iter()
            .flat_map(|&from| match tensor.3.chunks(page).nth(from) {
                Some(page) => page.to_vec(),
                None => f32::NAN.to_le_bytes().repeat(page / 4),
            });
        Tensor(name, "F32", vec![4, 4, 2, 8], data.collect())
    };
    let pages = || {
        [
            in_pages("k_pages", dense("k")),
            in_pages("v_pages", dense("v")),
        ]
    };
    let table = |dtype, entries: Vec<u8>| Tensor("block_table", dtype, vec![2, 2], entries);
    let bytes = |page: i64| page.to_le_bytes().to_vec();
    for (name, table) in [
        ("i32", i32_matrix("block_table", [2, 2], &[2, 3, 0, 77])),
        (
            "u32",
            table(
                "U32",
                [2, 3, 0, u32::MAX]
                    .iter()
                    .flat_map(|x| x.to_le_bytes())
                    .collect(),
            ),
        ),
        (
            "i64",
            table(
                "I64",
                [2, 3, 0, i64::MIN].into_iter().flat_map(bytes).collect(),
            ),
        ),
    ] {
        let [k, v] = pages();
        fs::write(path(name), file(&[q(), k, v, table, lengths()])).unwrap();
    }
    let [k, v] = pages();
    let packed = [
        Tensor("q", "F32", vec![6, 2, 8], q().3),
        k,
        v,
        i32_tensor("cu_seqlens_q", &[0, 3, 6]),
        i32_matrix("block_table", [2, 2], &[2, 3, 0, -1]),
        lengths(),
    ];
    fs::write(path("packed"), file(&packed)).unwrap();
    let hnd = |name, tensor| {
        let Tensor(_, dtype, shape, data) = transposed(in_pages(name, tensor));
        Tensor(name, dtype, shape, data)
    };
    let bhsd = [
        transposed(q()),
        hnd("k_pages", dense("k")),
        hnd("v_pages", dense("v")),
        i32_matrix("block_table", [2, 2], &[2, 3, 0, -1]),
        lengths(),
    ];
    fs::write(path("bhsd"), file(&bhsd)).unwrap();
    let compute = |name: &str, flags: &[&str]| {
        let out = path(&format!("{name}_out"));
        let mut command = cpu_run(&path(name));
        expect_code(0, command.arg("--causal").args(flags).arg("-o").arg(&out));
        let bytes = fs::read(out).unwrap();
        (read_f32(&bytes, "out"), read_f32(&bytes, "lse").1)
    };
    let (out, lse) = compute("dense", &[]);
    for name in ["i32", "u32", "i64"] {
        assert_eq!(compute(name, &[]), (out.clone(), lse.clone()), "{name}");
    }
    assert_eq!(compute("packed", &[]).0.1, out.1);
    assert_eq!(compute("bhsd", &["--layout", "bhsd"]).1, lse);
}

#[test]
fn alibi_slopes_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let write = |name: &str, slope: f32| {
        let slopes = Tensor("alibi_slopes", "F32", vec![1], slope.to_le_bytes().to_vec());
        let shape = [1, 9, 1, 8];
        let tensors = [
            f32_tensor("q", &shape),
            f32_tensor("k", &shape),
            f32_tensor("v", &shape),
            slopes,
        ];
        fs::write(path(name), file(&tensors)).unwrap();
    };
    write("steep", 100.0);
    // A slope so steep that each query sees itself alone, as with a window of nothing but the diagonal.
    expect_code(0, cpu_run(&path("steep")).arg("-o").arg(path("out")));
    let (_, out) = read_f32(&fs::read(path("out")).unwrap(), "out");
    let Tensor(_, _, _, v) = f32_tensor("v", &[1, 9, 1, 8]);
    assert_eq!(
        out.iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>(),
        v
    );
}

/// Queries, keys and values of 9 rows and two heads, with one more tensor.
fn nine_rows(extra: Tensor) -> Vec<u8> {
    let [q, k, v] = ["q", "k", "v"].map(|name| f32_tensor(name, &[1, 9, 2, 8]));
    file(&[q, k, v, extra])
}

#[test]
fn bias_and_mask_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (input, out) = (dir.path().join("qkv"), dir.path().join("out"));
    let diagonal = || (0..81).map(|i| i % 10 == 0);
    let bias = |shown| if shown { 0.0 } else { f32::NEG_INFINITY };
    let bias = diagonal()
        .flat_map(|shown| bias(shown).to_le_bytes())
        .collect();
    let mask = |dtype| {
        let bytes = diagonal().map(u8::from).collect();
        Tensor("mask", dtype, vec![1, 1, 9, 9], bytes)
    };
    let Tensor(_, _, _, v) = f32_tensor("v", &[1, 9, 2, 8]);
    // Each query sees the key of its own row alone.
    for extra in [
        Tensor("bias", "F32", vec![1, 1, 9, 9], bias),
        mask("BOOL"),
        mask("U8"),
    ] {
        fs::write(&input, nine_rows(extra)).unwrap();
        expect_code(0, cpu_run(&input).arg("-o").arg(&out));
        let (_, values) = read_f32(&fs::read(&out).unwrap(), "out");
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(bytes, v);
        expect_code(0, cpu_run(&input).arg("--expect").arg(&out));
    }
}

#[test]
fn sinks_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let (input, out) = (dir.path().join("qkv"), dir.path().join("out"));
    // The first head's sink outweighs every key, the second's is outweighed.
    let sinks = [200.0_f32, -200.0];
    let bytes = sinks.iter().flat_map(|x| x.to_le_bytes()).collect();
    let extra = Tensor("sinks", "F32", vec![2], bytes);
    fs::write(&input, nine_rows(extra)).unwrap();
    expect_code(0, cpu_run(&input).arg("-o").arg(&out));
    let bytes = fs::read(&out).unwrap();
    let (_, lse) = read_f32(&bytes, "lse");
    assert!(lse[..9].iter().all(|&lse| lse == 200.0), "{lse:?}");
    assert!(lse[9..].iter().all(|&lse| lse.abs() < 50.0), "{lse:?}");
    let (_, values) = read_f32(&bytes, "out");
    let rows = values.chunks(16);
    assert!(
        rows.into_iter()
            .all(|row| row[..8].iter().all(|x| x.abs() < 1e-30))
    );
    expect_code(0, cpu_run(&input).arg("--expect").arg(&out));
}

#[test]
fn explain_prints_the_plan() {
    let (stdout, _) = expect_code(
        0,
        cpu_run(&example("minilm_qkv.safetensors")).arg("--explain"),
    );
    for line in [
        "call     f16 1 sequence, 12 heads",
        "problem  f16 b1 q",
        "device   cpu",
        "kernel   cpu",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
}

#[test]
fn fixed_splits_are_named_in_the_plan() {
    let (stdout, _) = expect_code(
        0,
        cpu_run(&example("minilm_qkv.safetensors"))
            .arg("--expect")
            .arg(example("minilm_expected.safetensors"))
            .args(["--explain", "--splits", "512"]),
    );
    let problem = stdout.lines().find(|line| line.starts_with("problem"));
    assert!(
        problem.is_some_and(|line| line.contains(" splits=512")),
        "{stdout}"
    );
    assert_eq!(stdout.matches(" is as expected").count(), 2, "{stdout}");
}

#[test]
fn empty_tensors_are_fine() {
    let dir = tempfile::tempdir().unwrap();
    for (q, kv) in [
        ([0, 5, 2, 8], [0, 5, 2, 8]),
        ([1, 0, 2, 8], [1, 5, 2, 8]),
        ([1, 5, 2, 8], [1, 0, 2, 8]),
    ] {
        let input = dir.path().join("empty");
        let out = dir.path().join("out");
        fs::write(
            &input,
            file(&[
                f32_tensor("q", &q),
                f32_tensor("k", &kv),
                f32_tensor("v", &kv),
            ]),
        )
        .unwrap();
        expect_code(0, cpu_run(&input).arg("-o").arg(&out));
        let bytes = fs::read(&out).unwrap();
        assert_eq!(
            read_f32(&bytes, "out"),
            (q.to_vec(), vec![0.0; q.iter().product()])
        );
        assert!(
            read_f32(&bytes, "lse")
                .1
                .iter()
                .all(|&lse| lse == f32::NEG_INFINITY)
        );
    }
}

/// With a single key all queries have its value: the gradient of the value is the sum of those of the outputs.
#[test]
fn a_gradient_of_the_output_gives_those_of_the_inputs() {
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("input"), dir.path().join("output"));
    let query = |name| f32_tensor(name, &[1, 3, 2, 8]);
    let key = |name| f32_tensor(name, &[1, 1, 1, 8]);
    let tensors = [query("q"), key("k"), key("v"), query("d_out")];
    fs::write(&input, file(&tensors)).unwrap();
    let (stdout, _) = expect_code(0, cpu_run(&input).arg("-o").arg(&output));
    assert!(stdout.contains("gradients by cpu on cpu"), "{stdout}");
    assert!(
        stdout.contains("wrote    out, lse and gradients"),
        "{stdout}"
    );
    let (written, given) = (fs::read(&output).unwrap(), file(&tensors));
    let (_, d_out) = read_f32(&given, "d_out");
    let (shape, dv) = read_f32(&written, "dv");
    assert_eq!(shape, [1, 1, 1, 8]);
    for (column, found) in dv.iter().enumerate() {
        let sum: f32 = d_out.iter().skip(column).step_by(8).sum();
        assert!((found - sum).abs() < 1e-5, "{found} {sum}");
    }
    for (name, expected) in [("dq", [1, 3, 2, 8]), ("dk", [1, 1, 1, 8])] {
        let (shape, values) = read_f32(&written, name);
        assert_eq!(shape, expected);
        assert!(values.iter().all(|value| value.abs() < 1e-5), "{values:?}");
    }
    // The gradients of a row's biases, of which one is shared by both heads, add up to 0.
    let keys = |name| f32_tensor(name, &[1, 2, 1, 8]);
    let bias = f32_tensor("bias", &[1, 1, 3, 2]);
    let biased = [query("q"), keys("k"), keys("v"), bias, query("d_out")];
    fs::write(&input, file(&biased)).unwrap();
    expect_code(0, cpu_run(&input).arg("-o").arg(&output));
    let (shape, d_bias) = read_f32(&fs::read(&output).unwrap(), "d_bias");
    assert_eq!(shape, [1, 1, 3, 2]);
    for row in d_bias.chunks(2) {
        assert!((row[0] + row[1]).abs() < 1e-5 && row[0] != 0.0, "{row:?}");
    }
    let wrong = [query("q"), key("k"), key("v"), key("d_out")];
    fs::write(&input, file(&wrong)).unwrap();
    let (_, stderr) = expect_code(2, &mut cpu_run(&input));
    assert!(stderr.contains("d_out"), "{stderr}");
}
