//! `tune` on the stand-in for the driver, whose kernels take as long as the test says and compute nothing.

use crate::common::{expect_code, warptile};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use warptile_fake_cuda::{FakeDriver, KERNEL_TIMES};

/// A GPU, and a folder for configuration.
struct Machine {
    fake: FakeDriver,
    home: tempfile::TempDir,
}

const PROBLEM: &str = "b1 q64 k64 h2 d64 f16";

/// The one that is to win, where one is.
const FAST: &str = "mma_d64_64x64_w4_s2";

/// The one that wrong rates have in its place.
const SLOW: &str = "mma_d64_128x64_w4_s2";

impl Machine {
    fn new() -> Self {
        Machine {
            fake: FakeDriver::open(),
            home: tempfile::tempdir().unwrap(),
        }
    }

    /// The program on a terminal of 80 columns; `times` as [`KERNEL_TIMES`] has them.
    fn command(&self, times: &str, arguments: &[&str]) -> Command {
        let mut command = warptile();
        command
            .args(arguments)
            .env("WARPTILE_LIBCUDA", self.fake.path())
            .env("XDG_CONFIG_HOME", self.home.path())
            .env("COLUMNS", "80");
        // The machine may be slow, and each operation of the stand-in takes longer than it says.
        if arguments[0] == "tune"
            && !arguments
                .iter()
                .any(|one| ["--reset", "--budget"].contains(one))
        {
            command.args(["--budget", "3600"]);
        }
        if !times.is_empty() {
            command.env(KERNEL_TIMES, times);
        }
        command
    }

    #[track_caller]
    fn run(&self, times: &str, arguments: &[&str]) -> String {
        let (stdout, _) = expect_code(0, &mut self.command(times, arguments));
        for line in stdout.lines().filter(|line| !line.contains('/')) {
            assert!(line.chars().count() <= 80, "{line}");
        }
        stdout
    }

    /// The kernel that the planner chooses.
    #[track_caller]
    fn chosen(&self, problem: &str) -> String {
        let (json, _) = expect_code(0, &mut self.command("", &["plan", problem, "--json", "-"]));
        let plans: serde_json::Value = serde_json::from_str(&json).unwrap();
        plans[0]["kernel"].as_str().unwrap().to_owned()
    }

    fn folder(&self) -> PathBuf {
        self.home.path().join("warptile/rates")
    }

    /// Files in the folder of rates.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder());
        let mut files: Vec<String> = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    }

    /// The name of the GPU's file, from what `info --json` says of the GPU.
    fn rates_file(&self) -> PathBuf {
        let (json, _) = expect_code(0, &mut self.command("", &["info", "--json", "-"]));
        let info: serde_json::Value = serde_json::from_str(&json).unwrap();
        let name = info["devices"][0]["name"].as_str().unwrap();
        let words: Vec<String> = name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
            .collect();
        self.folder().join(words.join("-") + ".txt")
    }

    /// Writes rates for the GPU.
    fn plant(&self, driver: &str, lines: &str) {
        let (json, _) = expect_code(0, &mut self.command("", &["info", "--json", "-"]));
        let info: serde_json::Value = serde_json::from_str(&json).unwrap();
        let device = &info["devices"][0];
        let text = format!(
            "device {}\ndriver {driver}\nmultiprocessors {}\nbandwidth 4\nlaunch 3\n{lines}",
            device["name"].as_str().unwrap(),
            device["multiprocessors"]
        );
        fs::create_dir_all(self.folder()).unwrap();
        fs::write(self.rates_file(), text).unwrap();
    }
}

/// A process that does not outlive its test.
#[cfg(unix)]
struct Running(std::process::Child);

#[cfg(unix)]
impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// As a build does it meanwhile.
#[test]
#[cfg(target_os = "linux")]
fn the_repeats_run_though_the_program_was_deleted() {
    let machine = Machine::new();
    let program = machine.home.path().join("program");
    let times = format!("warptile_{FAST}_=800,warptile_{SLOW}_=3000");
    let arguments = ["tune", "--no-verify", "--shape", PROBLEM];
    let built = machine.command(&times, &arguments);
    fs::copy(built.get_program(), &program).unwrap();
    machine.plant("CUDA 12.8", &format!("kernel {SLOW} 9999 0\n"));
    let mut copied = Command::new(&program);
    copied.args(built.get_args()).stdout(Stdio::piped());
    for (name, value) in built.get_envs() {
        match value {
            Some(value) => copied.env(name, value),
            None => copied.env_remove(name),
        };
    }
    let child = copied.spawn().unwrap();
    fs::remove_file(&program).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_ne!(machine.chosen(PROBLEM), SLOW);
}

#[test]
fn a_planted_wrong_rates_file_is_put_right() {
    let machine = Machine::new();
    machine.plant(
        "CUDA 12.8",
        &format!("kernel {SLOW} 9999 0\nkernel {FAST} 0.001 9\n"),
    );
    assert_eq!(machine.chosen(PROBLEM), SLOW);
    let json = machine.home.path().join("tuned.json");
    let svg = machine.home.path().join("tuned.svg");
    let times = format!("warptile_{FAST}_=800,warptile_{SLOW}_=3000");
    let arguments = [
        "tune",
        "--no-verify",
        "--shape",
        PROBLEM,
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ];
    let stdout = machine.run(&times, &arguments);
    assert!(stdout.contains("  won: trial "), "{stdout}");
    assert!(stdout.contains("before"), "{stdout}");
    assert_eq!(machine.chosen(PROBLEM), FAST);
    let tuned = read(&json);
    let row = &tuned["problems"][0];
    assert_eq!(row["verdict"], "won", "{row}");
    assert_eq!(row["old"]["kernel"], SLOW);
    assert_eq!(row["chosen"]["kernel"], FAST);
    // A launch took 3000 and then 800 microseconds, besides the operations around a graph.
    let gain = row["gain"].as_f64().unwrap();
    assert!((3.0..3.8).contains(&gain), "{gain}");
    assert!(row["screened"].as_array().unwrap().len() > 10, "{row}");
    assert!(row["repeat"].as_array().unwrap().len() > 10, "{row}");
    assert!(fs::read_to_string(&svg).unwrap().contains(FAST));
    // One file has the rates in force. Nothing else is left behind.
    assert_eq!(machine.files().len(), 1, "{:?}", machine.files());
    let info = machine.run("", &["info"]);
    assert!(info.contains("kernels measured"), "{info}");
    let (plan, _) = expect_code(0, &mut machine.command("", &["plan", PROBLEM]));
    assert!(plan.contains("\nrates    measured "), "{plan}");
    // Once more: nothing is left to win.
    let stdout = machine.run(&times, &["tune", "--no-verify", "--shape", PROBLEM]);
    assert!(stdout.contains("  kept: "), "{stdout}");
    assert_eq!(machine.chosen(PROBLEM), FAST);
    machine.run("", &["tune", "--reset"]);
    assert_eq!(machine.files(), [""; 0]);
}

/// The search ends by itself, says which kernel it was, and goes on without it.
#[test]
fn a_kernel_that_never_ends_is_left_out_the_next_time() {
    let machine = Machine::new();
    let times = "warptile_wmma_d64_32x32_w4_s2_=inf";
    let arguments = ["tune", "--no-verify", "--shape", PROBLEM, "--patience", "1"];
    let (_, stderr) = expect_code(3, &mut machine.command(times, &arguments));
    assert!(
        stderr.contains("wmma_d64_32x32_w4_s2 gave no answer for 1 s on "),
        "{stderr}"
    );
    let stdout = machine.run(times, &arguments);
    assert!(stdout.contains("lost     wmma_d64_32x32_w4_s2"), "{stdout}");
    assert!(stdout.contains("  kept: "), "{stdout}");
    machine.run("", &["tune", "--reset"]);
    assert_eq!(machine.files(), [""; 0]);
}

/// Nothing can be compared with it, however often the command is repeated.
#[test]
fn a_choice_that_never_ends_is_done_with() {
    let machine = Machine::new();
    let times = format!("warptile_{}_=inf", machine.chosen(PROBLEM));
    let arguments = ["tune", "--no-verify", "--shape", PROBLEM, "--patience", "1"];
    expect_code(3, &mut machine.command(&times, &arguments));
    let json = machine.home.path().join("tuned.json");
    let stdout = machine.run(
        &times,
        &[&arguments[..], &["--json", json.to_str().unwrap()]].concat(),
    );
    assert!(stdout.contains(" gave no answer"), "{stdout}");
    assert!(!stdout.contains("goes on from there"), "{stdout}");
    assert_eq!(read(&json)["problems"][0]["verdict"], "lost");
}

#[test]
fn equal_speeds_change_no_choice() {
    let machine = Machine::new();
    let problems = [
        PROBLEM,
        "b1 q64 k64 h2 d64 bf16 mask=causal",
        "b1 q64 k128 h4/2 d128 f16",
    ];
    let before: Vec<String> = problems
        .iter()
        .map(|problem| machine.chosen(problem))
        .collect();
    let mut arguments = vec!["tune"];
    arguments.extend(problems.iter().flat_map(|problem| ["--shape", problem]));
    let stdout = machine.run("", &[&arguments[..], &["--dry-run"]].concat());
    assert_eq!(
        stdout.matches("  kept: the fastest of ").count(),
        3,
        "{stdout}"
    );
    assert_eq!(machine.files(), [""; 0], "a dry run writes nothing");
    // The rates that are fitted would choose otherwise: all kernels took as long.
    machine.run("", &arguments);
    let after: Vec<String> = problems
        .iter()
        .map(|problem| machine.chosen(problem))
        .collect();
    assert_eq!(before, after);
}

#[test]
fn a_kernel_that_computes_wrong_results_never_wins() {
    let machine = Machine::new();
    let before = machine.chosen(PROBLEM);
    let times = format!("warptile_{FAST}_=100");
    let stdout = machine.run(&times, &["tune", "--shape", PROBLEM]);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("but fails `warptile verify "), "{stdout}");
    assert_eq!(machine.chosen(PROBLEM), before);
}

#[test]
fn settings_that_won_are_verified_with_their_kernel() {
    let machine = Machine::new();
    let arguments = ["tune", "--shape", PROBLEM];
    // The state of a search whose budget ended before the verification of the winner: settings of the planner's own kernel.
    machine.run("", &[&arguments[..], &["--budget", "0"]].concat());
    let file = { machine.files().into_iter() }
        .find(|file| file.ends_with(".state.json"))
        .unwrap();
    let file = machine.folder().join(file);
    let mut state = read(&file);
    let entry = &mut state["entries"][0];
    let kernel = entry["old"]["kernel"].clone();
    entry["screened"] = serde_json::json!([
        { "kernel": kernel, "settings": "", "microseconds": 100.0 },
        { "kernel": kernel, "settings": "ctas=1", "microseconds": 50.0 },
    ]);
    entry["first"] = serde_json::json!(vec![2.0; 40]);
    entry["repeat"] = entry["first"].clone();
    let state = state.to_string();
    fs::write(&file, &state).unwrap();
    // The stand-in computes nothing: nothing is right.
    let stdout = machine.run("", &arguments);
    assert!(stdout.contains("resumed  1"), "{stdout}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("but fails `warptile verify "), "{stdout}");
    let command = format!(
        "verify --kernel {} --settings \"ctas=1\"",
        kernel.as_str().unwrap()
    );
    assert!(words.contains(&command), "{stdout}");
    let choice = format!("choice {} ctas=1 {PROBLEM}\n", kernel.as_str().unwrap());
    let rates = || fs::read_to_string(machine.rates_file()).unwrap();
    assert!(!rates().contains(&choice), "{}", rates());
    // Without a verification they are taken.
    machine.run("", &["tune", "--reset"]);
    fs::write(&file, &state).unwrap();
    machine.run("", &[&arguments[..], &["--no-verify"]].concat());
    assert!(rates().contains(&choice), "{}", rates());
}

/// The search ends as one whose winner computed wrong results, and what was verified stays known if it ends early.
#[test]
fn a_winner_that_breaks_the_device_is_not_taken() {
    const OTHER: &str = "b1 q64 k64 h3 d64 f16";
    let machine = Machine::new();
    let arguments = ["tune", "--shape", PROBLEM, "--shape", OTHER];
    machine.run("", &[&arguments[..], &["--budget", "0"]].concat());
    let file = machine.rates_file().with_extension("state.json");
    let mut state = read(&file);
    let won = |state: &mut serde_json::Value, index: usize, kernel: &str| {
        let entry = &mut state["entries"][index];
        let old = entry["old"]["kernel"].clone();
        entry["screened"] = serde_json::json!([
            { "kernel": old, "settings": "", "microseconds": 100.0 },
            { "kernel": kernel, "settings": "", "microseconds": 50.0 },
        ]);
        entry["first"] = serde_json::json!(vec![2.0; 40]);
        entry["repeat"] = entry["first"].clone();
    };
    won(&mut state, 0, FAST);
    won(&mut state, 1, "mma_d64_1x1_w1_s1");
    fs::write(&file, state.to_string()).unwrap();
    // A device on which nothing computes says nothing about a kernel.
    let (_, stderr) = expect_code(3, &mut machine.command("warptile_=nan", &arguments));
    let words = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(&format!("cannot verify {FAST}: ")) && words.contains("nothing is recorded"),
        "{stderr}"
    );
    assert!(read(&file)["entries"][0]["verified"].is_null());
    let times = format!("warptile_{FAST}_=nan");
    // There is no kernel of the second name, which says nothing about any.
    let (_, stderr) = expect_code(3, &mut machine.command(&times, &arguments));
    assert!(stderr.contains("cannot verify mma_d64_1x1"), "{stderr}");
    let mut kept = read(&file);
    assert_eq!(kept["entries"][0]["verified"], false, "{kept}");
    won(&mut kept, 1, FAST);
    fs::write(&file, kept.to_string()).unwrap();
    let stdout = machine.run(&times, &arguments);
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let failed = format!("but fails `warptile verify --kernel {FAST}` on this GPU");
    assert_eq!(words.matches(&failed).count(), 2, "{stdout}");
    assert_eq!(machine.files().len(), 1, "{:?}", machine.files());
}

/// As a part of a GPU has the name of the whole.
#[test]
fn measurements_with_other_multiprocessors_are_not_taken_over() {
    let machine = Machine::new();
    let arguments = ["tune", "--budget", "0", "--shape", PROBLEM];
    machine.run("", &arguments);
    let file = machine.rates_file().with_extension("state.json");
    let mut state = read(&file);
    let entry = &mut state["entries"][0];
    let old = entry["old"].clone();
    entry["screened"] = serde_json::json!([
        { "kernel": old["kernel"], "settings": old["settings"], "microseconds": 100.0 },
    ]);
    fs::write(&file, state.to_string()).unwrap();
    let stdout = machine.run("", &[&arguments[..], &["--dry-run"]].concat());
    assert!(
        !stdout.contains("resumed"),
        "a dry run reads none: {stdout}"
    );
    state["multiprocessors"] = 66.into();
    fs::write(&file, state.to_string()).unwrap();
    let stdout = machine.run("", &arguments);
    assert!(!stdout.contains("resumed"), "{stdout}");
    state["multiprocessors"] = 132.into();
    fs::write(&file, state.to_string()).unwrap();
    let stdout = machine.run("", &arguments);
    assert!(stdout.contains("resumed  1"), "{stdout}");
}

/// Two shapes that rates know by one line: only one of them can be tuned.
#[test]
fn a_problem_that_shares_its_line_with_another_is_named() {
    let machine = Machine::new();
    let aligned = "b32 q512 k512 h12 d64 f16 bias broadcast=none";
    let other = "b32 q512 k512 h12 d64 f16 bias broadcast=keys";
    let arguments = ["tune", "--dry-run", "--budget", "0", "--shape", aligned];
    let stdout = machine.run("", &[&arguments[..], &["--shape", other]].concat());
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("skipped {other}: ")), "{stdout}");
    // The same shape twice is one problem, and nothing is missing.
    let stdout = machine.run("", &[&arguments[..], &["--shape", aligned]].concat());
    assert!(!stdout.contains("skipped"), "{stdout}");
}

#[test]
fn what_is_verified_is_launched_with_the_settings_that_were_asked_for() {
    let machine = Machine::new();
    let case = "b1 q1 k512 h2 d64 f16";
    let verify = |settings: &[&str]| {
        let arguments = [
            "verify",
            "--kernel",
            "decode_d64_16x128_w4_s2",
            "--case",
            case,
        ];
        let mut command = machine.command("", &[&arguments[..], settings].concat());
        let (_, stderr) = expect_code(1, &mut command);
        stderr
    };
    assert!(!verify(&[]).contains("--settings"));
    let stderr = verify(&["--settings", "ranges=3 ctas=1"]);
    assert!(
        stderr.contains("--settings \"ranges=3 ctas=1\" --case"),
        "{stderr}"
    );
    for (settings, words) in [
        ("ranges=0", "`ranges=0` is not"),
        (" ", "settings are such as"),
    ] {
        let arguments = ["verify", "--kernel", "decode", "--settings", settings];
        let (_, stderr) = expect_code(2, &mut machine.command("", &arguments));
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_search_leaves_the_rates_alone_and_goes_on() {
    let machine = Machine::new();
    let lines = "kernel mma_d64_64x64_w4_s2 9999 0\n";
    machine.plant("CUDA 12.8", lines);
    let planted = fs::read(machine.rates_file()).unwrap();
    let file = machine.home.path().join("problems.txt");
    let problems: Vec<String> = (1..=8)
        .map(|heads| format!("q64 k64 h{heads} d64 f16\n"))
        .collect();
    fs::write(&file, problems.concat()).unwrap();
    let file = file.to_str().unwrap();
    let json = machine.home.path().join("tuned.json");
    let arguments = ["tune", "--no-verify", "--file", file];
    let arguments = [&arguments[..], &["--json", json.to_str().unwrap()]].concat();
    let mut command = machine.command("", &arguments);
    let (code, stderr, stdout) = crate::interrupt::interrupted(&mut command, "b1 q64 k64 h1 ");
    assert_eq!(code, Some(130), "{stdout}{stderr}");
    assert!(stderr.contains("cut short: "), "{stderr}");
    // What was measured until then is written.
    assert!(stdout.contains("before and after"), "{stdout}");
    let tuned = read(&json);
    assert_eq!(tuned["cut_short"], true);
    let rows = tuned["problems"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(!rows[0]["screened"].as_array().unwrap().is_empty());
    assert_eq!(rows[7]["verdict"], "not-reached");
    assert_eq!(fs::read(machine.rates_file()).unwrap(), planted);
    let files = machine.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let state = read(
        &machine.folder().join(
            files
                .iter()
                .find(|one| one.ends_with(".state.json"))
                .unwrap(),
        ),
    );
    assert_eq!(state["entries"].as_array().unwrap().len(), 8);
    let stdout = machine.run("", &arguments);
    assert!(stdout.contains("\nresumed  "), "{stdout}");
    assert_eq!(read(&json)["cut_short"], false);
    assert_eq!(machine.files().len(), 1);
    // A budget of nothing measures nothing, and says so.
    let mut arguments = vec!["tune", "--budget", "0", "--shape", "q64 k64 h17 d64 f16"];
    let stdout = machine.run("", &arguments);
    let line = "budget   spent: 1 problem not done";
    let goes_on = "; the same command goes on from there\n";
    assert!(stdout.contains(&format!("{line}{goes_on}")), "{stdout}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("with 99% confidence"), "{stdout}");
    // A dry run keeps nothing to go on from.
    arguments.push("--dry-run");
    let stdout = machine.run("", &arguments);
    assert!(stdout.contains(&format!("{line}\n")), "{stdout}");
}

#[test]
#[cfg(unix)]
fn a_search_ends_soon() {
    let machine = Machine::new();
    let times = format!("warptile_{FAST}_=800,warptile_{SLOW}_=3000");
    // One takes a second or two.
    let problems = [8192, 8064, 7936, 7808, 7680, 7552]
        .map(|length| format!("b1 q{length} k{length} h2 d64 f16"));
    let shapes = { problems.iter() }.flat_map(|problem| ["--shape", problem]);
    let arguments: Vec<_> = ["tune", "--dry-run"].into_iter().chain(shapes).collect();
    let mut command = machine.command(&times, &arguments);
    crate::interrupt::ends_soon(&mut command, "Ctrl-C again ends at once");
}

/// One search waits until its record is read, which is before it writes rates; meanwhile another begins and ends.
#[test]
#[cfg(unix)]
fn two_searches_at_once_keep_one_anothers_results() {
    const OTHER: &str = "b1 q64 k64 h3 d64 f16";
    let machine = Machine::new();
    let lines = format!("kernel {SLOW} 9999 0\nkernel {FAST} 0.001 9\n");
    machine.plant("CUDA 12.8", &lines);
    let pipe = machine.home.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let times = format!("warptile_{FAST}_=800,warptile_{SLOW}_=3000");
    let search = |problem: &'static str, flags: &[&str]| {
        let arguments = ["tune", "--no-verify", "--shape", problem];
        machine.command(&times, &[&arguments[..], flags].concat())
    };
    let mut first = search(PROBLEM, &["--json", pipe.to_str().unwrap()]);
    let mut first = Running(first.stdout(Stdio::null()).spawn().unwrap());
    // It looks whether the pipe can be written, and has read the rates once it has kept what it measured.
    assert_eq!(fs::read(&pipe).unwrap(), b"");
    let state = machine.rates_file().with_extension("state.json");
    while !fs::read_to_string(&state).is_ok_and(|text| text.contains("microseconds")) {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    expect_code(0, &mut search(OTHER, &[]));
    assert_eq!(machine.chosen(OTHER), FAST);
    let kept = read(&state);
    assert_eq!(kept["entries"].as_array().unwrap().len(), 1, "{kept}");
    assert_eq!(kept["entries"][0]["problem"], PROBLEM);
    // As if the other had chosen for a third problem.
    let third = "choice mma_d64_64x64_w4_s2 ctas=1 b1 q64 k64 h5 d64 f16\n";
    let rates = fs::read_to_string(machine.rates_file()).unwrap();
    fs::write(machine.rates_file(), rates + third).unwrap();
    fs::read(&pipe).unwrap();
    let status = first.0.wait().unwrap();
    assert!(status.success(), "{status}");
    let rates = fs::read_to_string(machine.rates_file()).unwrap();
    assert!(rates.contains(third), "{rates}");
    assert_eq!(machine.chosen(PROBLEM), FAST);
    assert_eq!(machine.chosen(OTHER), FAST);
    assert_eq!(machine.files().len(), 1, "{:?}", machine.files());
}

#[test]
fn rates_of_another_driver_or_of_nobody_are_not_in_force() {
    let machine = Machine::new();
    let usual = machine.chosen(PROBLEM);
    for (driver, lines, reason) in [
        (
            "CUDA 11.0",
            format!("kernel {SLOW} 9999 0\n"),
            "driver CUDA 11.0, and this is CUDA 12.8",
        ),
        (
            "CUDA 12.8",
            format!("kernel {SLOW} fast 0\n"),
            "line 6: a number greater than 0",
        ),
    ] {
        machine.plant(driver, &lines);
        assert_eq!(machine.chosen(PROBLEM), usual);
        let (_, stderr) = expect_code(0, &mut machine.command("", &["plan", PROBLEM]));
        assert!(
            stderr.contains("is not in force") && stderr.contains(reason),
            "{stderr}"
        );
        let info = machine.run("", &["info"]);
        let words: Vec<&str> = info.split_whitespace().collect();
        assert!(words.join(" ").contains(reason), "{info}");
    }
}

#[test]
fn problems_that_a_program_logged_are_tuned_for() {
    let machine = Machine::new();
    let log = machine.home.path().join("problems.log");
    for _ in 0..2 {
        let mut command = machine.command(
            "",
            &[
                "bench",
                "--samples",
                "1",
                "--shape",
                "b2 q60 k100 h4/2 d64 f16 mask=causal",
                "--shape",
                PROBLEM,
            ],
        );
        expect_code(0, command.env("WARPTILE_LOG", &log));
    }
    let lines = fs::read_to_string(&log).unwrap();
    assert_eq!(
        lines,
        format!("b2 q60 k128 h4/2 d64 f16 mask=causal\n{PROBLEM}\n")
    );
    // A line that a full disk cut off, one of `Splits::EveryKeys`, one of another GPU, for which this one has no kernel, and one whose
    // tensors are too large to be measured with.
    let long = "b1 q1048576 k1048576 h32/8 d128 bf16 mask=causal";
    let others =
        format!("b1 q1 k512 h8 d64 f16 splits=512\nb1 q64 k64 h2 d512 f32\n{long}\nb2 q60 h4/");
    fs::write(&log, lines + &others).unwrap();
    let arguments = ["tune", "--dry-run", "--from-log", log.to_str().unwrap()];
    let stdout = machine.run("", &arguments);
    assert!(stdout.contains("0 of 2 problems"), "{stdout}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for skipped in [
        "skipped b1 q1 k512 h8 d64 f16 splits=512: ",
        "skipped b1 q64 k64 h2 d512 f32: ",
        &format!("skipped {long}: the problem has 4294967296 elements in a tensor; the limit is"),
    ] {
        assert!(words.contains(skipped), "{stdout}");
    }
    // Asked for, it is refused.
    let asked = ["tune", "--shape", "b1 q64 k64 h2 d512 f32"];
    let (_, stderr) = expect_code(2, &mut machine.command("", &asked));
    assert!(stderr.contains("no kernel for f32"), "{stderr}");
    // A log that can't be written fails no call.
    let mut command = machine.command("", &["bench", "--samples", "1", "--shape", PROBLEM]);
    expect_code(0, command.env("WARPTILE_LOG", "/nowhere/at/all"));
}

#[test]
fn what_cannot_be_tuned_is_refused() {
    let machine = Machine::new();
    for (code, arguments, words) in [
        (2, &["tune"][..], "give --shape, --file or --from-log"),
        (2, &["tune", "--shape", "q8 k8 d64 f16 sms=3"], "sms=N"),
        (
            2,
            &["tune", "--shape", "q8 k512 d64 f16 splits=256"],
            "same bits in every batch",
        ),
        (
            3,
            &["tune", "--device", "cpu", "--shape", "q8 k8 d64 f16"],
            "tune is for a GPU",
        ),
    ] {
        let (_, stderr) = expect_code(code, &mut machine.command("", arguments));
        assert!(stderr.contains(words), "{stderr}");
    }
}
