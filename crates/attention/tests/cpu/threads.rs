//! Machines that start no threads: a limit on processes, as containers have.

use std::process::Command;

use crate::common::verify_text;

/// Set in the process that the test starts.
const WITHOUT_THREADS: &str = "WARPTILE_TEST_WITHOUT_THREADS";

/// Runs itself once more, in a process whose threads would need more stack than there is address space.
#[test]
fn without_threads_the_caller_does_the_work() {
    if std::env::var_os(WITHOUT_THREADS).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["threads::without_threads", "--test-threads", "1"])
            .env("RUST_MIN_STACK", (1_u64 << 48).to_string())
            .env(WITHOUT_THREADS, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err());
    for text in [
        "b2 q300 k300 h8/2 d64 f32 mask=causal seed=3",
        "packed=3x5,0x7,400x200 h4 d40 f16 sinks seed=1",
    ] {
        verify_text(text);
    }
}
