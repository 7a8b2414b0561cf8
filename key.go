package onceward

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"
)

// KeySyntax is the accepted form of the key header.
type KeySyntax uint8

const (
	// SyntaxLenient accepts a quoted string of RFC 9651 or a bare value of visible ASCII without quotes, backslashes,
	// commas and semicolons. k and "k" are the same key. This is the default.
	SyntaxLenient KeySyntax = iota
	// SyntaxStrict accepts only the quoted string that the IETF draft requires.
	SyntaxStrict
)

// These are the limits of a key's length (rule H3).
const (
	minKeyLength = 1
	maxKeyLength = 255
)

// KeyRules sets which keys are accepted. The zero value has the defaults.
type KeyRules struct {
	// Headers are the names of the header that carries the key; the first one present counts. Default: Idempotency-Key.
	Headers []string
	// Syntax is the form of the header's value. Default: [SyntaxLenient].
	Syntax KeySyntax
	// MinLength is the smallest length of a key after decoding. Default: 1.
	MinLength int
	// MaxLength is the largest length of a key after decoding. More than 255 is refused. Default: 255.
	MaxLength int
	// RefusePersonalData refuses keys that look like an e-mail address, a phone number or a card number. Default:
	// false.
	RefusePersonalData bool
}

// DefaultKeyHeader is the name of the header that carries the key.
const DefaultKeyHeader = "Idempotency-Key"

// These errors describe what is wrong with a key.
var (
	// ErrNoKey is returned when the request carries no key.
	ErrNoKey = errors.New("no idempotency key was sent")
	// ErrBadKey is returned when the key breaks the rules. The error text describes how.
	ErrBadKey = errors.New("the idempotency key is not valid")
	// ErrPersonalKey is returned when the key looks like personal data.
	ErrPersonalKey = errors.New("the idempotency key looks like personal data")
)

func badKey(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrBadKey, fmt.Sprintf(format, args...))
}

// withDefaults fills in the defaults, or returns an error that describes what is wrong.
func (k KeyRules) withDefaults() (KeyRules, error) {
	if len(k.Headers) == 0 {
		k.Headers = []string{DefaultKeyHeader}
	}
	headers := make([]string, len(k.Headers))
	for i, name := range k.Headers {
		if name == "" {
			return k, errors.New("onceward: the name of a key header is empty")
		}
		headers[i] = http.CanonicalHeaderKey(name)
	}
	k.Headers = headers
	if k.MinLength == 0 {
		k.MinLength = minKeyLength
	}
	if k.MaxLength == 0 {
		k.MaxLength = maxKeyLength
	}
	if k.MinLength < minKeyLength || k.MaxLength > maxKeyLength || k.MinLength > k.MaxLength {
		return k, fmt.Errorf("onceward: keys of %d to %d characters: the limits are %d and %d",
			k.MinLength, k.MaxLength, minKeyLength, maxKeyLength)
	}
	return k, nil
}

// fromHeader returns the key in a request's header.
func (k *KeyRules) fromHeader(h http.Header) (string, error) {
	for _, name := range k.Headers {
		lines := h[name]
		switch len(lines) {
		case 0:
			continue
		case 1:
			return k.parse(lines[0])
		default:
			return "", badKey("it was sent in %d header lines; send one", len(lines))
		}
	}
	return "", ErrNoKey
}

// ParseKey parses the key in a header line, by the given rules.
func ParseKey(line string, rules KeyRules) (string, error) {
	rules, err := rules.withDefaults()
	if err != nil {
		return "", err
	}
	return rules.parse(line)
}

func (k *KeyRules) parse(line string) (string, error) {
	key, err := k.decode(strings.Trim(line, " "))
	if err != nil {
		return "", err
	}
	if err := k.check(key); err != nil {
		return "", err
	}
	return key, nil
}

func (k *KeyRules) decode(value string) (string, error) {
	switch {
	case value == "":
		return "", badKey("it is empty")
	case value[0] == '"':
		return decodeQuoted(value)
	case k.Syntax == SyntaxStrict:
		return "", badKey(`it must be a quoted string, as in "%s"`, "8e03978e-40d5-43dd-bc93-6894a57f9324")
	default:
		return decodeBare(value)
	}
}

// decodeQuoted decodes a structured field item whose value is a string. Parameters after it are ignored (rule H4).
func decodeQuoted(value string) (string, error) {
	if inner, closed := strings.CutSuffix(value[1:], `"`); closed && plainQuoted(inner) {
		return inner, nil
	}
	item, err := httpsfv.UnmarshalItem([]string{value})
	if err != nil {
		return "", badKey("it is not a string by RFC 9651: check the quotes and escapes, and that it is a single value")
	}
	text, ok := item.Value.(string)
	if !ok {
		return "", badKey("it is not a string by RFC 9651")
	}
	return text, nil
}

// plainQuoted reports whether the text between two quotes needs no decoding. This is the usual case, without
// allocations.
func plainQuoted(inner string) bool {
	for i := range len(inner) {
		if c := inner[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func decodeBare(value string) (string, error) {
	for i := range len(value) {
		switch c := value[i]; {
		case c == ',':
			return "", badKey("it contains a comma: send one key, not a list")
		case c <= ' ' || c > '~':
			return "", badKey("it contains the byte 0x%02x: only visible ASCII is allowed", c)
		case c == '"' || c == '\\' || c == ';':
			return "", badKey("it contains %q: send it as a quoted string", c)
		}
	}
	return value, nil
}

// checkDecoded checks a key that was not parsed from a header line.
func (k *KeyRules) checkDecoded(key string) error {
	if !plainText(key) {
		return badKey("only visible ASCII and spaces are allowed")
	}
	return k.check(key)
}

func plainText(key string) bool {
	for i := range len(key) {
		if c := key[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

func (k *KeyRules) check(key string) error {
	switch {
	case key == "":
		return badKey("it is empty")
	case len(key) < k.MinLength:
		return badKey("it has %d characters, fewer than %d", len(key), k.MinLength)
	case len(key) > k.MaxLength:
		return badKey("it has %d characters, more than %d", len(key), k.MaxLength)
	case k.RefusePersonalData && looksPersonal(key):
		return fmt.Errorf("%w: use a random value such as a UUID", ErrPersonalKey)
	default:
		return nil
	}
}

// looksPersonal reports whether a key looks like personal data (rule H7): an e-mail address anywhere in the key, or a
// key that is only a phone or card number.
func looksPersonal(key string) bool {
	return looksLikeEmail(key) || looksLikeNumber(key)
}

func looksLikeEmail(key string) bool {
	name, domain, found := strings.Cut(key, "@")
	dot := strings.LastIndexByte(domain, '.')
	return found && name != "" && dot > 0 && dot < len(domain)-1
}

// looksLikeNumber reports whether a key consists of digits and the separators that people put between them: with a
// leading plus, a phone number of 7 to 15 digits; without a plus, 13 to 19 digits with a card's check digit, or a
// national phone number that starts with a zero.
func looksLikeNumber(key string) bool {
	digits := make([]byte, 0, 20)
	for i := range len(key) {
		switch c := key[i]; {
		case '0' <= c && c <= '9':
			digits = append(digits, c-'0')
		case c == '+' && i == 0, strings.IndexByte(" -.()/", c) >= 0:
		default:
			return false
		}
		if len(digits) > 19 {
			return false
		}
	}
	switch n := len(digits); {
	case key[0] == '+':
		return n >= 7 && n <= 15
	case n >= 13 && luhn(digits):
		return true
	default:
		return n >= 9 && n <= 12 && digits[0] == 0
	}
}

// luhn reports whether digits end in the check digit of a payment card.
func luhn(digits []byte) bool {
	sum := 0
	for i := range digits {
		d := int(digits[len(digits)-1-i])
		if i%2 == 1 {
			d *= 2
			if d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}
