package canon_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/onceward/onceward/internal/canon"
)

// A numeral is digits, which do not end with a zero, times ten to the exponent.
type numeral struct {
	digits   string
	exponent int
}

// randomValue returns a nil, bool, string, numeral, []any or map[string]any.
func randomValue(rng *rand.Rand, depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rng.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return rng.IntN(2) == 0
	case 2:
		return randomString(rng)
	case 3:
		return numeral{strconv.Itoa(rng.IntN(1000)*10 + 1 + rng.IntN(9)), rng.IntN(50) - 25}
	case 4:
		array := make([]any, rng.IntN(5))
		for i := range array {
			array[i] = randomValue(rng, depth-1)
		}
		return array
	}
	object := make(map[string]any)
	for range rng.IntN(25) {
		object[randomString(rng)] = randomValue(rng, depth-1)
	}
	return object
}

func randomString(rng *rand.Rand) string {
	alphabet := []rune("aaaaaabcxyzAZ019 /\\\"\n\t\x00\x1f\x7fé€\u2028\ud7ff\ue000\ufb33\uffff😀\U0010ffff")
	s := make([]rune, rng.IntN(12))
	for i := range s {
		s[i] = alphabet[rng.IntN(len(alphabet))]
	}
	return string(s)
}

// spell writes v in one of the many ways there are.
func spell(rng *rand.Rand, v any) string {
	space := func() string { return strings.Repeat([]string{" ", "\n", "\t", "\r"}[rng.IntN(4)], rng.IntN(3)) }
	var text string
	switch v := v.(type) {
	case nil:
		text = "null"
	case bool:
		text = strconv.FormatBool(v)
	case string:
		text = spellString(rng, v)
	case numeral:
		zeros := rng.IntN(4)
		text = v.digits + strings.Repeat("0", zeros) + "e" + strconv.Itoa(v.exponent-zeros)
	case []any:
		var elements []string
		for _, element := range v {
			elements = append(elements, spell(rng, element))
		}
		text = "[" + space() + strings.Join(elements, ",") + "]"
	case map[string]any:
		var members []string
		for name, value := range v {
			members = append(members, space()+spellString(rng, name)+space()+":"+spell(rng, value))
		}
		slices.Sort(members) // so that a seed has one outcome
		rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		text = "{" + strings.Join(members, ",") + space() + "}"
	}
	return space() + text + space()
}

func spellString(rng *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r >= ' ' && r != '"' && r != '\\' && rng.IntN(4) > 0 {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[rng.IntN(2)], unit)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// change returns v with one thing in it changed.
func change(rng *rand.Rand, v any) any {
	switch v := v.(type) {
	case bool:
		return !v
	case string:
		return v + "x"
	case numeral:
		return numeral{v.digits, v.exponent + 1}
	case []any:
		if len(v) == 0 || rng.IntN(4) == 0 {
			return append(slices.Clone(v), nil)
		}
		v = slices.Clone(v)
		i := rng.IntN(len(v))
		v[i] = change(rng, v[i])
		return v
	case map[string]any:
		names := slices.Sorted(maps.Keys(v))
		v = maps.Clone(v)
		if len(names) == 0 || rng.IntN(4) == 0 {
			v["another "+randomString(rng)] = nil
			return v
		}
		name := names[rng.IntN(len(names))]
		if rng.IntN(4) == 0 {
			delete(v, name)
		} else {
			v[name] = change(rng, v[name])
		}
		return v
	}
	return "null"
}

func TestSpellingDoesNotMatterAndMeaningDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 8785))
		v := randomValue(rng, 3)
		doc := spell(rng, v)
		want := canonical(t, doc, nil)
		if got, accepted, known := foretell([]byte(doc)); !accepted || !known || got != want {
			t.Fatalf("seed %d: got %s\nwant %s", seed, want, got)
		}
		if got := canonical(t, spell(rng, v), nil); got != want {
			t.Fatalf("seed %d: spelling matters:\n%s\n%s", seed, got, want)
		}
		if got := canonical(t, spell(rng, change(rng, v)), nil); got == want {
			t.Fatalf("seed %d: a change does not matter: %s", seed, got)
		}
	}
}

func TestIgnoredMemberIsAsGoodAsAbsent(t *testing.T) {
	t.Parallel()
	ignored := mustSelect(t, nil, []string{"/a", "/b/c"})
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 6901))
		inner := map[string]any{"x": randomValue(rng, 2), "y": randomValue(rng, 2)}
		outer := map[string]any{"b": inner, "z": randomValue(rng, 2), "é": randomValue(rng, 2)}
		want := canonical(t, spell(rng, outer), nil)
		inner["c"] = randomValue(rng, 3)
		outer["a"] = randomValue(rng, 3)
		if got := canonical(t, spell(rng, outer), ignored); got != want {
			t.Fatalf("seed %d: got %s\nwant %s", seed, got, want)
		}
	}
}

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

// number writes a number out as a plain decimal and lays that out again.
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
