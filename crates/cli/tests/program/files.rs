//! Files made and compared: `gen`, `compare`, and what `run` replaces.

use crate::common::{Tensor, expect_code, f32_tensor, file, warptile};
use std::fs;
use std::path::Path;

fn compare(code: i32, a: &Path, b: &Path, flags: &[&str]) -> (String, String) {
    expect_code(code, warptile().arg("compare").arg(a).arg(b).args(flags))
}

/// The command is for a shell, and what is printed for a terminal, whatever the files are called.
#[cfg(target_os = "linux")]
#[test]
fn the_command_that_gen_prints_can_be_run() {
    for name in ["in", "my file", "it's", "a\u{1b}[31m\n'$(b)\\", "-o"] {
        let dir = tempfile::tempdir().unwrap();
        let written = [name.to_owned(), format!("{name} wanted")];
        let mut command = warptile();
        command.current_dir(dir.path());
        command.args(["gen", "q3 k9 d8 f32"]);
        for (option, file) in ["-o", "--expected"].iter().zip(&written) {
            command.arg(format!("{option}={file}"));
        }
        let (stdout, _) = expect_code(0, &mut command);
        assert!(!stdout.contains('\u{1b}'), "{stdout:?}");
        let run = stdout
            .lines()
            .find_map(|line| line.strip_prefix("compute  "));
        let run = run.unwrap().strip_prefix("warptile ").unwrap();
        let mut shell = std::process::Command::new("bash");
        shell.current_dir(dir.path()).arg("-c");
        shell.arg(format!("\"$0\" {run} --device cpu"));
        shell.arg(warptile().get_program());
        let (stdout, _) = expect_code(0, &mut shell);
        assert!(stdout.contains("out is as expected"), "{stdout}");
    }
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
            "b1 q6 k4 h3/1 d40 f32 layout=bhsd scale=0.5 mask=causal diagonal=top-left",
            "--causal --diagonal top-left --scale 0.5 --layout bhsd",
        ),
        ("packed=6x4,1x1 h2 d8 f32 layout=bhsd", "--layout bhsd"),
        ("b2 q5 k9 h4/2 d24/16 bf16 layout=bhsd", "--layout bhsd"),
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
        (
            "b2 q2 k9 h4/2 d16 f16 mask=causal cache=e4m3 seed=7",
            "--causal",
        ),
        ("q256 k256 h2 d64 f16 blocks=64x64", "--blocks 64x64"),
        (
            "b2 q130 k200 h4/2 d16 f16 blocks=128x64,batch,head mask=causal layout=bhsd",
            "--causal --blocks 128x64,batch,head --layout bhsd",
        ),
        ("b2 q5 k9 h4/2 d16 f16 bias=f32 seed=8", ""),
        ("q3 k700 d8 f32 splits=512", "--splits 512"),
    ]
    .into_iter()
    .enumerate()
    {
        let input = path(&format!("input{index}"));
        let (stdout, _) = expect_code(0, warptile().args(["gen", problem, "-o"]).arg(&input));
        let command = format!("compute  warptile run {} {flags}", input.display());
        assert!(
            stdout.contains(&format!("{}\n", command.trim_end())),
            "{stdout}"
        );
        let run = |out: &Path| {
            expect_code(
                0,
                warptile()
                    .arg("run")
                    .arg(&input)
                    .args(flags.split_whitespace())
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

#[test]
fn tensors_of_every_type_that_is_written_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (problem, tensor) in [
        ("q3 k4 d8 f16 keymask", "mask"),
        ("b2 q1 k4 h2 d16 bf16 pages=16 cache=e4m3", "k_pages"),
        ("q3 k4 d8 f32 dropout=0.5", "dropout_state"),
    ] {
        for name in ["a.npz", "b.safetensors"] {
            expect_code(0, warptile().args(["gen", problem, "-o"]).arg(path(name)));
        }
        let (stdout, _) = compare(0, &path("a.npz"), &path("b.safetensors"), &[]);
        assert!(stdout.contains(&format!("  {tensor}: 0 of ")), "{stdout}");
    }
    let write = |name: &str, dtype: &'static str, data: &[u8]| {
        let tensor = Tensor("x", dtype, vec![data.len()], data.to_vec());
        fs::write(path(name), file(&[tensor])).unwrap();
        path(name)
    };
    let (shown, hidden) = (write("a", "BOOL", &[1, 1]), write("b", "U8", &[1, 0]));
    let (stdout, _) = compare(1, &shown, &hidden, &[]);
    assert!(
        stdout.contains("x: 1 of 2 values differ, 1 by more than is allowed; largest"),
        "{stdout}"
    );
    // 1 and 1.125, 0.3125 and -0.3125.
    let e4m3 = |name: &str, bits: [u8; 2]| write(name, "F8_E4M3", &bits);
    let (one, other) = (e4m3("c", [0x38, 0x2a]), e4m3("d", [0x39, 0xaa]));
    let (stdout, _) = compare(1, &one, &other, &["--atol", "0.2"]);
    assert!(
        stdout.contains("2 of 2 values differ, 1 by") && stdout.contains("6.25e-1 at 1"),
        "{stdout}"
    );
    let odd = write("e", "I8", &[1, 2]);
    let (_, stderr) = compare(2, &odd, &odd, &[]);
    assert!(
        stderr.contains(
            "x has elements of type I8; F16, BF16, F32, F64, F8_E4M3, I32, U32, I64, BOOL or U8 is needed"
        ),
        "{stderr}"
    );
}

/// Standard output of `run` on these files.
fn run_on(inputs: &[&Path], flags: &[&str], out: &Path) -> String {
    let mut command = warptile();
    command
        .arg("run")
        .args(inputs)
        .args(["--device", "cpu"])
        .args(flags);
    expect_code(0, command.arg("-o").arg(out)).0
}

#[test]
fn numpys_files_are_read_and_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let problem = "b2 q5 k9 h4/2 d16 f16 mask=causal bias keymask sinks seed=3";
    for name in ["in.safetensors", "in.npz"] {
        expect_code(0, warptile().args(["gen", problem, "-o"]).arg(path(name)));
    }
    run_on(
        &[&path("in.safetensors")],
        &["--causal"],
        &path("a.safetensors"),
    );
    run_on(&[&path("in.npz")], &["--causal"], &path("b.npz"));
    let (stdout, _) = compare(0, &path("a.safetensors"), &path("b.npz"), &[]);
    assert!(
        stdout.contains("compare  lse: 0 of 40 values differ"),
        "{stdout}"
    );
    // One array each, as numpy.save writes them.
    let (stdout, _) = expect_code(0, warptile().args(["gen", problem, "-o"]).arg(dir.path()));
    let names = ["q", "k", "v", "bias", "mask", "sinks"].map(|name| path(&format!("{name}.npy")));
    let files: Vec<String> = names
        .iter()
        .map(|name| name.display().to_string())
        .collect();
    let command = format!("compute  warptile run {} --causal\n", files.join(" "));
    assert!(stdout.contains(&command), "{stdout}");
    let names: Vec<&Path> = names.iter().map(|name| name.as_path()).collect();
    let stdout = run_on(&names, &["--causal"], &path("c.npy"));
    assert!(stdout.contains("wrote    out to "), "{stdout}");
    // Compared by their only tensors: a file of one array calls it as the file.
    let out = fs::read(path("b.npz")).unwrap();
    let mut out = zip::ZipArchive::new(std::io::Cursor::new(out)).unwrap();
    let mut out = out.by_name("out.npy").unwrap();
    std::io::copy(&mut out, &mut fs::File::create(path("out.npy")).unwrap()).unwrap();
    compare(0, &path("c.npy"), &path("out.npy"), &[]);
    let refused = |code, inputs: &[&Path], what: &str| {
        let mut command = warptile();
        let (_, stderr) = expect_code(code, command.arg("run").args(inputs));
        assert!(stderr.contains(what), "{stderr}");
    };
    refused(
        2,
        &[&path("in.npz"), &path("q.npy")],
        "each must be an .npy file",
    );
    refused(
        2,
        &[&path("q.npy"), &path("k.npy")],
        "tensor v is missing; the file has only k, q",
    );
    refused(4, &[&path("q.npy"), &path("q.npy")], "two tensors called q");
    fs::write(path("bad.npy"), "text").unwrap();
    refused(
        4,
        &[&path("bad.npy")],
        "cannot be read as .npy: bad: it does not begin with",
    );
    fs::write(path("bad.npz"), "text").unwrap();
    refused(4, &[&path("bad.npz")], "cannot be read as .npz");
    expect_code(2, warptile().args(["gen", "d8", "-o"]).arg(path("one.npy")));
}

#[test]
fn generated_results_are_what_run_expects() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (problem, flags, values) in [
        (
            "b2 q5 k9 h4/2 d16 f16 mask=causal softcap=15 alibi=batch seed=3",
            "--causal --softcap 15",
            "normal:3",
        ),
        (
            "packed=3x5,0x2,4x4 h2 d8 bf16 mask=window,2,-1",
            "--window 2,-1",
            "uniform:2",
        ),
        (
            "b2 q6 k4 h3/1 d40 f32 layout=bhsd scale=0.5",
            "--scale 0.5 --layout bhsd",
            "outliers",
        ),
        (
            "packed=6x4,1x1 h2 d8 f32 layout=bhsd sinks",
            "--layout bhsd",
            "normal",
        ),
        ("b2 q5 k9 h4/2 d16/32 f32 mask=causal", "--causal", "normal"),
        (
            "b3 q2 k50 h4/2 d24/8 f16 layout=bhsd pages=16 lengths=50,0,33",
            "--layout bhsd",
            "normal",
        ),
        (
            "b3 q2 k50 h4/2 d16 f32 pages=16 lengths=50,0,33 seed=6",
            "",
            "normal",
        ),
        (
            "b3 q2 k50 h4/2 d16 bf16 pages=16 lengths=50,0,33 cache=e4m3 seed=7",
            "",
            "normal:3",
        ),
        (
            "packed=3x5,0x2,4x4 h4/2 d16 f32 layout=bhsd cache=e4m3 seed=8",
            "--layout bhsd",
            "outliers",
        ),
        (
            "b2 q130 k200 h4/2 d16 f16 blocks=64x64,head mask=causal",
            "--causal --blocks 64x64,head",
            "normal",
        ),
        ("b2 q5 k9 h4/2 d16 bf16 bias=f32 seed=8", "", "normal"),
    ] {
        for end in ["npz", "safetensors"] {
            let (input, expected) = (path(&format!("in.{end}")), path(&format!("want.{end}")));
            let mut command = warptile();
            command
                .args(["gen", problem, "--values", values, "-o"])
                .arg(&input);
            let (stdout, _) = expect_code(0, command.arg("--expected").arg(&expected));
            let end = format!(" --expect {}\n", expected.display());
            assert!(stdout.ends_with(&end), "{stdout}");
            let flags: Vec<&str> = flags.split_whitespace().collect();
            let mut command = warptile();
            command
                .arg("run")
                .arg(&input)
                .args(flags)
                .args(["--device", "cpu", "--expect"]);
            let (stdout, _) = expect_code(0, command.arg(&expected));
            assert_eq!(stdout.matches(" is as expected").count(), 2, "{stdout}");
        }
    }
    // The values do follow from the distribution.
    let of = |values: &str| {
        let file = path("values.safetensors");
        let mut command = warptile();
        command.args(["gen", "q64 d64 f32", "--values", values, "-o"]);
        expect_code(0, command.arg(&file));
        crate::common::read_f32(&fs::read(&file).unwrap(), "q").1
    };
    let (one, three) = (of("normal"), of("normal:3"));
    assert!(
        one.iter()
            .zip(&three)
            .all(|(a, b)| (3.0 * a - b).abs() < 1e-5)
    );
    assert!(of("uniform:2").iter().all(|x| x.abs() <= 2.0));
    let same = path("same.safetensors");
    let mut command = warptile();
    command
        .args(["gen", "d8", "-o"])
        .arg(&same)
        .arg("--expected")
        .arg(&same);
    expect_code(2, &mut command);
    // Another path to it.
    let mut command = warptile();
    command.args(["gen", "d8", "-o", "other", "--expected", "./other"]);
    expect_code(2, command.current_dir(dir.path()));
    assert!(!path("other").exists());
    expect_code(
        2,
        warptile()
            .args(["gen", "d8", "--values", "gauss", "-o"])
            .arg(&same),
    );
}

/// A file that cannot be written is named as the user wrote it, wherever the writing ends.
#[test]
#[cfg(target_os = "linux")]
fn a_file_that_cannot_be_written_is_named_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.safetensors");
    let refused = |script: &str, out: &Path| {
        let mut shell = std::process::Command::new("sh");
        let program = warptile();
        let problem = "b1 q64 k64 h1 d64 f16";
        shell.args(["-c", script, "sh"]).arg(program.get_program());
        shell.args(["gen", problem, "-o"]).arg(out);
        let (_, stderr) = expect_code(4, &mut shell);
        let start = format!("error: {}: cannot write: ", out.display());
        assert!(stderr.starts_with(&start), "{stderr}");
        assert!(!stderr.contains(".warptile-"), "{stderr}");
    };
    // As a full disk does, a limit on the size of files shows in the middle.
    refused("trap '' XFSZ; ulimit -f 1; exec \"$@\"", &out);
    refused("exec \"$@\"", Path::new("/proc/out.safetensors"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Only those parts of an archive are unpacked that are used.
#[test]
fn an_archive_is_refused_by_its_headers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let arrays = |more: &[(&str, u32)]| {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, count) in [("q", 1), ("k", 1), ("v", 1)].iter().chain(more) {
            let header = format!(
                "{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {count}, 1, 8), }}\n"
            );
            let mut array = b"\x93NUMPY\x01\x00".to_vec();
            array.extend((header.len() as u16).to_le_bytes());
            array.extend(header.bytes());
            array.resize(array.len() + *count as usize * 32, 0);
            let options = zip::write::SimpleFileOptions::default();
            archive.start_file(format!("{name}.npy"), options).unwrap();
            std::io::Write::write_all(&mut archive, &array).unwrap();
        }
        archive.finish().unwrap().into_inner()
    };
    // The last bytes of the last member are other than its checksum says: who unpacks it finds that.
    let mut broken = arrays(&[("other", 100_000)]);
    let directory = broken
        .windows(4)
        .rposition(|at| at == b"PK\x01\x02")
        .unwrap();
    broken[directory + 16] ^= 1;
    fs::write(path("a.npz"), &broken).unwrap();
    fs::write(path("b.npz"), arrays(&[("other", 3)])).unwrap();
    let mut run = warptile();
    let (_, stderr) = expect_code(2, run.arg("run").arg(path("a.npz")));
    assert!(stderr.contains("other is not used"), "{stderr}");
    let (stdout, _) = compare(1, &path("a.npz"), &path("b.npz"), &[]);
    assert!(
        stdout.contains("other has shape [1, 100000, 1, 8] and [1, 3, 1, 8]"),
        "{stdout}"
    );
    let (stdout, _) = compare(1, &path("b.npz"), &path("a.npz"), &[]);
    assert!(
        stdout.contains("compare  q: 0 of 8 values differ"),
        "{stdout}"
    );
    fs::write(path("c.npz"), broken).unwrap();
    let mut compare = warptile();
    compare.arg("compare").arg(path("a.npz")).arg(path("c.npz"));
    let (_, stderr) = expect_code(4, &mut compare);
    assert!(
        stderr.contains("a.npz: cannot be read as .npz: other: "),
        "{stderr}"
    );
}
