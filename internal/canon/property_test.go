package canon_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
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
