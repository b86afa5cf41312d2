//! The question on a terminal before long work.

use crate::common::warptile;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// A measurement of hours.
const LONG: [&str; 5] = ["bench", "--device", "cpu", "--shape", "q200000 h16"];

/// The program on a terminal, and the terminal's other side.
fn on_terminal(args: &[&str]) -> (Child, File) {
    let other = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&other).unwrap();
    unlockpt(&other).unwrap();
    let name = ptsname(&other, Vec::new()).unwrap();
    // Its end would end a test process that leads a session.
    let no_terminal_of_ours = OpenptFlags::NOCTTY.bits() as i32;
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(no_terminal_of_ours)
        .open(name.to_str().unwrap())
        .unwrap();
    let child = warptile()
        .args(args)
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (child, other.into())
}

/// Reads up to `sign`, or to the end of the program.
fn read_to(terminal: &mut File, sign: &str) -> String {
    let (mut text, mut part) = (String::new(), [0; 256]);
    while !text.contains(sign) {
        match terminal.read(&mut part) {
            Ok(0) => break,
            Ok(len) => text += &String::from_utf8_lossy(&part[..len]),
            // So Linux says that nobody has the terminal any more.
            Err(error) if error.raw_os_error() == Some(5) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}"),
        }
    }
    text
}

#[test]
fn no_ends_the_program_before_it_measures() {
    let (mut child, mut terminal) = on_terminal(&LONG);
    let asked = read_to(&mut terminal, "go on? [Y/n] ");
    assert!(asked.contains("measuring takes about "), "{asked}");
    terminal.write_all(b"n\n").unwrap();
    let rest = read_to(&mut terminal, "nothing was measured");
    assert!(rest.contains("nothing was measured"), "{rest}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn yes_begins_and_the_option_asks_nothing() {
    for (args, answer) in [
        (&LONG[..], true),
        (&[&LONG[..], &["--yes"]].concat(), false),
    ] {
        let (mut child, mut terminal) = on_terminal(args);
        let sign = if answer {
            "go on? [Y/n] "
        } else {
            "measuring takes about "
        };
        let text = read_to(&mut terminal, sign);
        assert_eq!(text.contains("go on?"), answer, "{text}");
        if answer {
            terminal.write_all(b"\n").unwrap();
        }
        // The bar of a measurement that runs. It may have come with the estimate.
        let bar = match text.contains("0/1 problems") {
            true => text,
            false => read_to(&mut terminal, "0/1 problems"),
        };
        assert!(bar.contains("0/1 problems"), "{bar}");
        crate::interrupt::signal(&child);
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
}
