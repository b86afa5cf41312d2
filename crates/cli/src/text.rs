//! Text from files and command lines, made safe for a terminal.

use std::io::{self, Write};
use std::path::Path;

use warptile::kernels::Excerpt;

/// Names of a list that are shown.
const NAMES: usize = 8;

/// Characters of another program's or library's message that are shown.
const MESSAGE: usize = 300;

/// Columns of the terminal: what COLUMNS says, or the terminal itself. `usize::MAX` where nothing limits a line.
pub(crate) fn columns() -> usize {
    // Terminals without a size say 0.
    let known = |&columns: &usize| columns > 0;
    let given = std::env::var("COLUMNS").ok();
    let given = given.and_then(|columns| columns.parse().ok());
    given
        .filter(known)
        .or_else(|| comfy_table::Table::new().width().map(usize::from))
        .filter(known)
        .unwrap_or(usize::MAX)
}

/// `text` on lines of at most `width` columns, broken between words; later lines are set in by `indent`. A word that is wider
/// stays whole.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines = String::new();
    // Columns of the line under way; the first line begins with its first word.
    let (mut column, mut words) = (0, 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if words > 0 && column + 1 + len > width {
            lines.push('\n');
            lines.extend(std::iter::repeat_n(' ', indent));
            (column, words) = (indent, 0);
        } else if words > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += len;
        words += 1;
    }
    lines
}

/// Writes text as lines of the terminal's width. All but the first are set in by `indent`.
pub(crate) fn wrap_to(console: &mut dyn Write, indent: usize, text: &str) -> io::Result<()> {
    writeln!(console, "{}", wrapped(text, columns(), indent))
}

/// Writes a formatted line for people within the terminal: a word of at most eight letters, and behind it what it is about.
macro_rules! say {
    ($console:expr, $($text:tt)*) => {
        $crate::text::wrap_to($console, 9, &format!($($text)*))
    };
}
pub(crate) use say;

/// A number of things: `1 kernel`, `2 kernels`.
pub(crate) fn count(count: impl Into<u64>, thing: &str) -> String {
    let count = count.into();
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A name that a file or a command line chose.
pub(crate) fn name(text: &str) -> String {
    Excerpt::new(text).to_string()
}

/// The whole of a path.
pub(crate) fn path(path: &Path) -> String {
    Excerpt::up_to(usize::MAX, &path.display().to_string()).to_string()
}

/// A path as one word of a command for the user's shell: as it is if it means itself there, else in quotes.
pub(crate) fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let begin = if shown.starts_with('-') { "./" } else { "" };
    let shown = format!("{begin}{shown}");
    let is_plain = |symbol: char| symbol.is_alphanumeric() || "-_./:=,@%+".contains(symbol);
    if cfg!(windows) {
        // No name has a quote in it there.
        return match shown
            .chars()
            .all(|symbol| is_plain(symbol) || symbol == '\\')
        {
            true => shown,
            false => format!("\"{}\"", self::path(Path::new(&shown))),
        };
    }
    if path.to_str().is_some() && shown.chars().all(is_plain) {
        return shown;
    }
    if path.to_str().is_some() && self::path(Path::new(&shown)) == shown {
        return format!("'{}'", shown.replace('\'', r"'\''"));
    }
    // bash, zsh and newer shells read bytes that a terminal or a text would not keep.
    let bytes = begin
        .as_bytes()
        .iter()
        .chain(path.as_os_str().as_encoded_bytes());
    let word: String = bytes
        .map(|&byte| match byte {
            b'\'' | b'\\' => format!("\\{}", char::from(byte)),
            b' '..=b'~' => char::from(byte).to_string(),
            _ => format!("\\{byte:03o}"),
        })
        .collect();
    format!("$'{word}'")
}

/// Names that a file chose, in order.
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_unstable();
    let mut shown: Vec<String> = names.iter().take(NAMES).map(|text| name(text)).collect();
    if let Some(more @ 1..) = names.len().checked_sub(NAMES) {
        shown.push(format!("{more} more"));
    }
    shown.join(", ")
}

/// A message that may quote a file.
pub(crate) fn message(text: &str) -> String {
    Excerpt::up_to(MESSAGE, text).to_string()
}

/// A tensor's shape, which a file may give any number of dimensions.
pub(crate) fn shape(shape: &[usize]) -> String {
    message(&format!("{shape:?}"))
}

/// A whole report for standard error: lines stay, and everything else that a terminal would act on is escaped.
pub(crate) fn lines(text: &str) -> String {
    let shown = text
        .split('\n')
        .map(|line| Excerpt::up_to(usize::MAX, line).to_string());
    shown.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        assert_eq!(
            name("q\u{1b}[31m\r\n\u{202e}é"),
            "q\\u{1b}[31m\\r\\n\\u{202e}é"
        );
        assert_eq!(lines("one\ntwo\u{7}"), "one\ntwo\\u{7}");
        assert_eq!(message("\"it's\" C:\\x"), "\"it's\" C:\\x");
    }

    #[cfg(unix)]
    #[test]
    fn paths_are_one_word_of_a_shell() {
        use std::os::unix::ffi::OsStrExt;

        let of = |bytes: &[u8]| quoted(Path::new(std::ffi::OsStr::from_bytes(bytes)));
        for plain in [
            "a/b-c_1.npz",
            "/tmp/é=%,@+:",
            "~a~",
            "a b",
            "it's",
            "-x",
            "$(a)",
        ] {
            let word = of(plain.as_bytes());
            let expected = match plain {
                "it's" => r"'it'\''s'".to_owned(),
                "-x" => "./-x".to_owned(),
                "~a~" | "a b" | "$(a)" => format!("'{plain}'"),
                _ => plain.to_owned(),
            };
            assert_eq!(word, expected);
        }
        assert_eq!(of(b"a\x1b[31m"), r"$'a\033[31m'");
        assert_eq!(
            of("-'\\\u{202e}\n".as_bytes()),
            r"$'./-\'\\\342\200\256\012'"
        );
        assert_eq!(of(b"\xff9"), r"$'\3779'");
        assert_eq!(path(Path::new("a b\u{1b}")), "a b\\u{1b}");
    }

    #[test]
    fn lines_end_between_words() {
        assert_eq!(wrapped("one two three", 80, 4), "one two three");
        assert_eq!(wrapped("one two three", 8, 2), "one two\n  three");
        assert_eq!(wrapped("  set in two", 9, 4), "  set in\n    two");
        assert_eq!(wrapped("a verylongword b", 6, 1), "a\n verylongword\n b");
    }

    #[test]
    fn nothing_is_endless() {
        assert_eq!(name(&"x".repeat(100_000)).len(), Excerpt::NAME + 3);
        let many: Vec<String> = (0..5000).map(|i| format!("{i:05}")).collect();
        let shown = names(many.iter().map(String::as_str));
        assert!(
            shown.starts_with("00000, 00001") && shown.ends_with(", 4992 more"),
            "{shown}"
        );
        assert!(shape(&[7; 100_000]).len() <= MESSAGE + 3);
    }
}
