package canon_test

import (
	"bytes"
	"encoding/json"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/onceward/onceward/internal/canon"
)

// An oracle canonicalises slowly, with nothing in common with the package but
// the rules.
type oracle struct {
	tokens  *json.Decoder
	depth   int
	refused bool
	huge    bool // a number is too large or too small for the oracle
}

// foretell returns the canonical form of doc, and whether doc is to be accepted.
// It knows neither if known is false.
func foretell(doc []byte) (form string, accepted, known bool) {
	if !json.Valid(doc) || !utf8.Valid(doc) || hasLoneSurrogate(doc) {
		return "", false, true
	}
	o := &oracle{tokens: json.NewDecoder(bytes.NewReader(doc))}
	o.tokens.UseNumber()
	form = o.value(o.token())
	return form, !o.refused, !o.huge || o.refused
}

var escapes = regexp.MustCompile(`(\\u[0-9a-fA-F]{4})+|\\.`)

// hasLoneSurrogate looks at each run of escaped code units in the valid JSON
// text doc. Only strings have backslashes.
func hasLoneSurrogate(doc []byte) bool {
	for _, run := range escapes.FindAll(doc, -1) {
		if run[1] != 'u' {
			continue
		}
		var units []uint16
		for digits := range strings.SplitSeq(string(run[2:]), `\u`) {
			unit, err := strconv.ParseUint(digits, 16, 16)
			if err != nil {
				panic(err)
			}
			units = append(units, uint16(unit))
		}
		if !slices.Equal(utf16.Encode(utf16.Decode(units)), units) {
			return true
		}
	}
	return false
}

func (o *oracle) token() json.Token {
	token, err := o.tokens.Token()
	if err != nil {
		panic(err) // the text is valid
	}
	return token
}

func (o *oracle) value(token json.Token) string {
	switch token := token.(type) {
	case json.Delim:
		o.depth++
		defer func() { o.depth-- }()
		o.refused = o.refused || o.depth > canon.MaxDepth
		if token == '[' {
			return o.array()
		}
		return o.object()
	case json.Number:
		return o.number(string(token))
	case string:
		return quote(token)
	case bool:
		return strconv.FormatBool(token)
	}
	return "null"
}

func (o *oracle) array() string {
	var elements []string
	for o.tokens.More() {
		elements = append(elements, o.value(o.token()))
	}
	o.token()
	return "[" + strings.Join(elements, ",") + "]"
}

func (o *oracle) object() string {
	values := make(map[string]string)
	var names []string
	for o.tokens.More() {
		name := o.token().(string)
		if _, duplicate := values[name]; duplicate {
			o.refused = true
		}
		names = append(names, name)
		values[name] = o.value(o.token())
	}
	o.token()
	slices.SortFunc(names, func(a, b string) int {
		return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
	})
	for i, name := range names {
		names[i] = quote(name) + ":" + values[name]
	}
	return "{" + strings.Join(names, ",") + "}"
}

// separators matches the two characters which encoding/json escapes for the sake
// of JavaScript. It matches all other escapes too, so as not to take an escaped
// backslash and u2028 for one of them.
var separators = regexp.MustCompile(`\\u202[89]|\\.`)

func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err)
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	return separators.ReplaceAllStringFunc(quoted, func(escape string) string {
		switch escape {
		case `\u2028`:
			return "\u2028"
		case `\u2029`:
			return "\u2029"
		}
		return escape
	})
}

// number writes a number out as a plain decimal and lays that out anew.
func (o *oracle) number(text string) string {
	_, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if e, err := strconv.Atoi("0" + strings.TrimLeft(exponent, "+-")); err != nil || e > 1000 {
		o.huge = true
		return ""
	}
	exact, _ := new(big.Rat).SetString(text)
	places, _ := exact.FloatPrec()
	sign := ""
	if exact.Sign() < 0 {
		sign = "-"
	}
	plain := exact.Abs(exact).FloatString(places)
	whole, fraction, _ := strings.Cut(plain, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	point := len(whole) - (len(whole+fraction) - len(digits))
	digits = strings.TrimRight(digits, "0")
	if digits == "" || -6 < point && point <= 21 {
		return sign + plain
	}
	mantissa := digits[:1]
	if len(digits) > 1 {
		mantissa += "." + digits[1:]
	}
	power := strconv.Itoa(point - 1)
	if point > 0 {
		power = "+" + power
	}
	return sign + mantissa + "e" + power
}
