package canon_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// Each group is one number; no two groups are the same.
func TestNumbers(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, group := range [][]string{
		{"0", "-0", "0.0", "0e5", "0.000", "-0.0e-7", "0E+0", "0e99999999999999999999999"},
		{"1", "1.0", "1e0", "10e-1", "1E+0", "1e-0", "0.1e1", "0.001e3", "100e-2", "1.000"},
		{"-1", "-1.0", "-10e-1"},
		{"10", "1e1", "1.0E1", "10.0"},
		{"1000", "1e3", "1.000e3", "10e2"},
		{"0.5", "5e-1", "0.50", "50e-2"},
		{"19.99", "1999e-2", "19.990", "0.1999e2"},
		{"-19.99", "-1999e-2"},
		{"9007199254740992"},
		{"9007199254740993", "9007199254740993.0", "9007199254740993e0"},
		{"0.1"},
		{"0.1000000000000000055511151231257827"},
		{"100000000000000000000", "1e20"},
		{"123456789012345678901", "1.23456789012345678901e20"},
		{"123456789012345678901.5", "1.234567890123456789015e+20"},
		{"1e+21", "1000000000000000000000", "1E21"},
		{"1.234567890123456789012e+21", "1234567890123456789012"},
		{"1.2345678901234567890125e+21", "1234567890123456789012.5"},
		{"0.000001", "1e-6"},
		{"1e-7", "0.0000001", "0.00000010"},
		{"0.00000123", "123e-8"},
		{"1.23e-7", "0.000000123"},
		{"1e+400", "1e400", "10e399"},
		{"1e-400", "0.1e-399"},
		{"1e+401"},
		{"1e+99999999999999999999999", "1e99999999999999999999999", "10e99999999999999999999998", "0.1e100000000000000000000000"},
		{"1e-99999999999999999999999", "10e-100000000000000000000000", "0.1e-99999999999999999999998"},
		{"1e+100000000000000000000000", "10e99999999999999999999999", "1e0000100000000000000000000000"},
		{"1e+999999999999999999", "1e999999999999999999", "0.1e1000000000000000000"},
		{"1e+1000000000000000000", "10e999999999999999999", "1e1000000000000000000"},
		{"1e-1000000000000000000", "0.1e-999999999999999999"},
		{"1e-999999999999999999", "10e-1000000000000000000"},
	} {
		want := group[0]
		if seen[want] {
			t.Errorf("%s is there twice", want)
		}
		seen[want] = true
		for _, spelling := range group {
			if got := canonical(t, spelling, nil); got != want {
				t.Errorf("%s became %s, want %s", spelling, got, want)
			}
		}
	}
}

// A number moves its point about, and the exponent makes up for that.
func TestNumberSpellings(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(8, 785))
	for range 2000 {
		digits := fmt.Sprint(1 + rng.Uint64()>>rng.IntN(64))
		exponent := big.NewInt(rng.Int64N(60) - 30)
		if rng.IntN(2) == 0 {
			power := new(big.Int).Exp(big.NewInt(10), big.NewInt(rng.Int64N(40)), nil)
			exponent.Add(exponent, power)
		}
		if rng.IntN(2) == 0 {
			exponent.Neg(exponent)
		}
		want := canonical(t, fmt.Sprintf("%se%d", digits, exponent), nil)
		for range 5 {
			if got := canonical(t, respell(rng, digits, exponent), nil); got != want {
				t.Fatalf("%se%d became %s and %s", digits, exponent, want, got)
			}
		}
		exponent.Add(exponent, big.NewInt(1))
		if got := canonical(t, fmt.Sprintf("%se%d", digits, exponent), nil); got == want {
			t.Fatalf("%se%d became %s, as did a tenth of it", digits, exponent, got)
		}
	}
}

// respell returns digits times ten to the exponent in other words.
func respell(rng *rand.Rand, digits string, exponent *big.Int) string {
	zeros := rng.IntN(30)
	point := rng.IntN(len(digits) + 1)
	whole, fraction := digits[:point], digits[point:]
	shift := len(fraction)
	switch {
	case whole == "":
		whole, fraction = "0", strings.Repeat("0", zeros)+fraction
		shift += zeros
	case fraction == "":
		whole += strings.Repeat("0", zeros)
		shift -= zeros
	default:
		fraction += strings.Repeat("0", zeros)
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	sum := new(big.Int).Add(exponent, big.NewInt(int64(shift)))
	return fmt.Sprintf("%s%s%s%s", whole, fraction, []string{"e", "E"}[rng.IntN(2)], sum)
}
