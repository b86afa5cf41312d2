//! The code of a C++ file: its text without comments and formatting.

/// `text` with every comment and every run of white space turned into one blank, so that texts that differ only in comments and in how
/// lines are broken have equal code.
///
/// Literals, raw ones too, stay as they are, a line that a backslash continues is joined with the next, and each directive keeps a line
/// to itself.
pub fn code(text: &str) -> String {
    let mut source = Source { text, at: 0 };
    let mut code = Code::default();
    while let Some(character) = source.next() {
        match character {
            '\n' => code.end_line(),
            '/' if source.peek() == Some('/') => {
                while source.peek().is_some_and(|next| next != '\n') {
                    source.next();
                }
                code.blank = true;
            }
            '/' if source.peek() == Some('*') => {
                source.next();
                skip_block_comment(&mut source);
                code.blank = true;
            }
            '"' if ["R", "LR", "uR", "UR", "u8R"].contains(&code.word()) => {
                code.push('"');
                code.verbatim(source.rest_of_raw_string());
            }
            '"' => copy_literal(&mut source, &mut code, '"'),
            // In a number it separates digits.
            '\'' if !code
                .word()
                .starts_with(|first: char| first.is_ascii_digit()) =>
            {
                copy_literal(&mut source, &mut code, '\'');
            }
            blank if blank.is_whitespace() => code.blank = true,
            other => code.push(other),
        }
    }
    code.text
}

/// Characters of a text, read with continued lines joined.
struct Source<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Source<'a> {
    fn join_lines(&mut self) {
        let joints = ["\\\n", "\\\r\n"];
        while let Some(joint) = joints.iter().find(|joint| self.rest().starts_with(**joint)) {
            self.at += joint.len();
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&mut self) -> Option<char> {
        self.join_lines();
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let character = self.peek()?;
        self.at += character.len_utf8();
        Some(character)
    }

    /// Everything after the opening quote of a raw string up to its closing quote, in which lines are not joined; all that is left if
    /// the string does not end.
    fn rest_of_raw_string(&mut self) -> &'a str {
        let rest = self.rest();
        let len = rest
            .split_once('(')
            .and_then(|(delimiter, _)| {
                let end = format!("){delimiter}\"");
                Some(rest.find(&end)? + end.len())
            })
            .unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }
}

fn skip_block_comment(source: &mut Source<'_>) {
    while let Some(character) = source.next() {
        if character == '*' && source.peek() == Some('/') {
            source.next();
            return;
        }
    }
}

/// Copies a literal whose opening quote was read. An apostrophe in the text of an `#error` opens one that ends with the line.
fn copy_literal(source: &mut Source<'_>, code: &mut Code, quote: char) {
    code.push(quote);
    while let Some(next) = source.peek().filter(|&next| next != '\n') {
        source.next();
        code.text.push(next);
        if next == '\\' && source.peek() != Some('\n') {
            code.text.extend(source.next());
        } else if next == quote {
            break;
        }
    }
    code.word.clear();
}

#[derive(Default)]
struct Code {
    text: String,
    /// The identifier or number at the end of the text.
    word: String,
    /// Comments or white space follow the text.
    blank: bool,
    /// The present line has begun.
    in_line: bool,
    /// The present line is a directive.
    in_directive: bool,
}

impl Code {
    /// The identifier or number that the next character follows immediately.
    fn word(&self) -> &str {
        if self.blank { "" } else { &self.word }
    }

    fn push(&mut self, character: char) {
        if !self.in_line && character == '#' {
            self.in_directive = true;
            if !self.text.is_empty() && !self.text.ends_with('\n') {
                self.text.push('\n');
            }
        } else if self.blank && !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push(' ');
        }
        if self.blank || !(character.is_alphanumeric() || "_'".contains(character)) {
            self.word.clear();
        }
        if character.is_alphanumeric() || "_'".contains(character) {
            self.word.push(character);
        }
        self.blank = false;
        self.in_line = true;
        self.text.push(character);
    }

    fn verbatim(&mut self, text: &str) {
        self.text.push_str(text);
        self.word.clear();
    }

    fn end_line(&mut self) {
        if self.in_directive {
            self.text.push('\n');
        }
        self.blank = true;
        self.in_line = false;
        self.in_directive = false;
    }
}

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn comments_and_formatting_are_left_out() {
        let one = "// About f.\n\nint f(int a, /* of\n two lines */ int b) {\n    return a; // b, \\\n too\n}\n";
        assert_eq!(code(one), "int f(int a, int b) { return a; }");
        let reworded = "/* Else. */ int f(int a,\n  int b)\n{ return a; }";
        assert_eq!(code(reworded), code(one));
        assert_eq!(code("a/**/b"), "a b");
        assert_eq!(code("a /* // */ / b // /* c\nd"), "a / b d");
        assert_eq!(code("a /* never ends"), "a");
    }

    #[test]
    fn every_token_counts() {
        for (one, other) in [
            ("a b", "ab"),
            ("a + +b", "a ++b"),
            ("f(1)", "f(2)"),
            ("\"a  b\"", "\"a b\""),
            ("#define A b\nc", "#define A b c"),
            ("#define F(a) b", "#define F (a) b"),
        ] {
            assert_ne!(code(one), code(other));
        }
    }

    #[test]
    fn literals_stay() {
        for literal in [
            r#""// no comment""#,
            r#""/* nor\" // this""#,
            "'\"' '//' '\\''",
            "R\"(\" // \\\n  two  lines)\"",
            "u8R\"x(  )\" // )x\"",
            "1'000'000",
            "0x1'F",
        ] {
            assert_eq!(code(&format!("{literal} // a comment")), literal);
            assert_eq!(code(&format!("/* it's */{literal}\n\n")), literal);
        }
        assert_eq!(code("1'000 // it's\n2'0"), "1'000 2'0");
        assert_eq!(code("u8'a' // b"), "u8'a'");
        assert_eq!(code("R \"(\" // b"), "R \"(\"");
        assert_eq!(code("\"one \\\ntwo // three\""), "\"one two // three\"");
    }

    #[test]
    fn directives_have_lines_of_their_own() {
        assert_eq!(
            code(
                "#pragma once // why\n\n  #  define A \\\n   b\nint c;\n int d;\n#error it's // so\nint e;"
            ),
            "#pragma once\n# define A b\nint c; int d;\n#error it's // so\nint e;"
        );
        assert_eq!(code("a # b"), "a # b");
        assert_eq!(
            code("/* c */ # if A\n#endif"),
            "# if A\n#endif\n".trim_end()
        );
    }
}
