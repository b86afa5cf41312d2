//! Files made and compared: `gen`, `compare`, and what `run` replaces.

use crate::common::{Tensor, expect_code, f32_tensor, file, warptile};
use std::fs;
use std::path::Path;

fn compare(code: i32, a: &Path, b: &Path, flags: &[&str]) -> (String, String) {
    expect_code(code, warptile().arg("compare").arg(a).arg(b).args(flags))
}

#[test]
fn a_generated_file_can_be_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (index, (problem, flags)) in [
        (
            "b2 q5 k9 h4/2 d16 f16 mask=causal softcap=15 alibi=batch seed=3",
            "--causal --softcap 15",
        ),
        (
            "packed=3x5,0x2,4x4 h2 d8 bf16 mask=window,2,-1 alibi=head",
            "--window 2,-1",
        ),
        (
            "b1 q6 k4 h3/1 d40 f32 layout=bhsd scale=0.5 mask=causal-top-left",
            "--causal=top-left --scale 0.5 --layout bhsd",
        ),
        ("packed=6x4,1x1 h2 d8 f32 layout=bhsd", "--layout bhsd"),
        (
            "b2 q5 k9 h4/2 d16 f16 mask=causal sinks bias keymask seed=4",
            "--causal",
        ),
        (
            "b2 q5 k9 h4/2 d16 bf16 bias keymask layout=bhsd seed=5",
            "--layout bhsd",
        ),
        (
            "b3 q2 k50 h4/2 d16 f32 mask=causal sinks bias pages=16 lengths=50,0,33 seed=6",
            "--causal",
        ),
        (
            "packed=3x40,1x7 h2 d8 f32 layout=bhsd pages=3 mask=window,9,0",
            "--window 9,0 --layout bhsd",
        ),
        ("q2 h2 d8 f32 lengths=9,4 scale=0.3", "--scale 0.3"),
    ]
    .into_iter()
    .enumerate()
    {
        let input = path(&format!("input{index}"));
        let (stdout, _) = expect_code(0, warptile().args(["gen", problem, "-o"]).arg(&input));
        let command = format!("compute  warptile run {} {flags}\n", input.display());
        assert!(stdout.contains(&command), "{stdout}");
        let run = |out: &Path| {
            expect_code(
                0,
                warptile()
                    .arg("run")
                    .arg(&input)
                    .args(flags.split(' '))
                    .args(["--device", "cpu", "-o"])
                    .arg(out),
            )
        };
        run(&path("one"));
        let (stdout, _) = run(&path("two"));
        assert!(
            stdout.contains(" (first call), ") && stdout.contains(" (median of "),
            "{stdout}"
        );
        let (stdout, _) = compare(0, &path("one"), &path("two"), &[]);
        assert!(stdout.contains("compare  out: 0 of "), "{stdout}");
        let bytes = fs::read(path("one")).unwrap();
        let out = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let out = out.tensor("out").unwrap();
        let nan = match out.dtype() {
            safetensors::Dtype::F32 => out
                .data()
                .chunks(4)
                .any(|x| f32::from_le_bytes(x.try_into().unwrap()).is_nan()),
            _ => false,
        };
        assert!(
            !nan,
            "{problem}: what surrounds a problem's tensors is not part of the file"
        );
    }
    for refused in [
        "d8 layout=gaps",
        "d8 layout=interleaved",
        "d8 unaligned",
        "d8 used=0x1",
    ] {
        expect_code(
            2,
            warptile().args(["gen", refused, "-o"]).arg(path("refused")),
        );
        assert!(!path("refused").exists());
    }
}

#[test]
fn differences_are_found_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, tensors: &[Tensor]| {
        let path = dir.path().join(name);
        fs::write(&path, file(tensors)).unwrap();
        path
    };
    let values = |values: [f32; 3]| {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor("x", "F32", vec![3], bytes)
    };
    let a = write("a", &[values([1.0, f32::NAN, 3.0])]);
    let b = write("b", &[values([1.0, f32::NAN, 3.5])]);
    compare(0, &a, &a, &[]);
    let (stdout, stderr) = compare(1, &a, &b, &[]);
    assert!(
        stdout.contains(
            "x: 1 of 3 values differ, 1 by more than is allowed; largest difference 5.00e-1 at 2"
        ),
        "{stdout}"
    );
    assert!(stderr.contains("differ in x"), "{stderr}");
    compare(0, &a, &b, &["--atol", "0.5"]);
    compare(0, &a, &b, &["--rtol", "0.15"]);
    compare(1, &a, &b, &["--rtol", "0.1"]);
    compare(2, &a, &b, &["--atol", "NaN"]);
    // NaN against a number is beyond every tolerance.
    compare(
        1,
        &a,
        &write("c", &[values([1.0, 2.0, 3.0])]),
        &["--atol", "1e30"],
    );
    let (stdout, _) = compare(
        1,
        &a,
        &write("d", &[f32_tensor("y", &[3]), f32_tensor("x", &[1, 3])]),
        &[],
    );
    assert!(
        stdout.contains("x has shape [3] and [1, 3]") && stdout.contains("y is only in"),
        "{stdout}"
    );
    compare(4, &a, Path::new("no/such/file"), &[]);
}
