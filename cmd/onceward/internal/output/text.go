package output

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes stored text safe for a terminal: keys, scopes and errors come from strangers, and an escape sequence among
// them would write to the operator's screen. What is not printable, a newline too, is shown as Go would write it in a
// string, and so is the backslash, so that what is shown has one meaning.
func Text(s string) string {
	if !strings.ContainsFunc(s, special) && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + hexByte(s[i]))
		case special(r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

// special reports whether a rune is shown otherwise than by itself. Runes that change the direction of text, or take no
// place, are not printable.
func special(r rune) bool { return r == '\\' || !unicode.IsPrint(r) }

func hexByte(c byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[c>>4], digits[c&15]})
}

// Lines makes text of several lines safe, such as a body that is shown: it keeps its newlines and tabs.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		parts := strings.Split(line, "\t")
		for j := range parts {
			parts[j] = Text(parts[j])
		}
		lines[i] = strings.Join(parts, "\t")
	}
	return strings.Join(lines, "\n")
}

// Shell writes text as one word of a shell's command line.
func Shell(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if s != "" && strings.TrimLeftFunc(s, plain) == "" {
		return s
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) || !utf8.ValidString(s) {
		return ansiQuoted(s)
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ansiQuoted is for text that a terminal must not be shown, in the quotes of bash and zsh that know escapes.
func ansiQuoted(s string) string {
	var b strings.Builder
	b.WriteString("$'")
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '\'' || c == '\\':
			b.WriteString(`\` + string(rune(c)))
		case c >= ' ' && c < 0x7f:
			b.WriteByte(c)
		default:
			b.WriteString(`\x` + hexByte(c))
		}
	}
	return b.String() + "'"
}
