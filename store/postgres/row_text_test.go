package postgres

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/onceward/onceward/store"
	"pgregory.net/rapid"
)

// payment is what a service answers.
const payment = `{"id":"pay_1MzxLq2eZvKYlo2CqQTfYQ4B","status":"succeeded","amount":18497,"currency":"EUR",` +
	`"reference":"ORD-2024-000184","customer":"cus_9s6XKzkNRiz8i3","created":"2024-05-02T10:11:12Z","livemode":true}`

// TestTextCodeIsWhole: in each place all bits that may come are the beginning of a symbol, no two have the same
// beginning, and the end of the text is all ones, of more bits than a byte can have left.
func TestTextCodeIsWhole(t *testing.T) {
	t.Parallel()
	for place := range text.codes {
		if n := len(codeLengths[place]); n != symbols {
			t.Fatalf("in the place %d are %d symbols, want %d", place, n, symbols)
		}
		total := 0
		for _, code := range text.codes[place] {
			total += 1 << (longestCode - code.length)
		}
		end := text.codes[place][endOfText]
		if total != 1<<longestCode || end.length < 8 || end.bits != 1<<end.length-1 {
			t.Errorf("in the place %d the symbols fill %d of %d, and the end is %b of %d bits", place, total, 1<<longestCode,
				end.bits, end.length)
		}
	}
}

// TestGoldenText: rows hold the code, so it never changes (S8).
func TestGoldenText(t *testing.T) {
	t.Parallel()
	const want = "f8728e7d2553d392650a42c73a4733c096376271011375001681f9f72e34e5e2"
	if got := fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(codeLengths[:], "\n")))); got != want {
		t.Errorf("S8: the code of text has changed: %s", got)
	}
	rec := goldenRows["completed"]
	rec.Response.Body = []byte(payment)
	var r row
	r.encode(&rec, [16]byte{}, operationNumber, knownForms)
	file := filepath.Join("testdata", "rows", "v1-coded.txt")
	if *update {
		if err := os.WriteFile(file, r.print(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, r.print()) {
		t.Errorf("S8: an answer is written as\n%s, want\n%s", r.print(), golden)
	}
	stored := parseGolden(t, golden)
	if got, err := stored.record(rec.ID, named(rec.Operation)); err != nil || !reflect.DeepEqual(got, rec) {
		t.Errorf("S8: it reads\n%+v (%v), want\n%+v", got, err, rec)
	}
}

// TestTextComesBack: whatever is coded comes back as it was.
func TestTextComesBack(t *testing.T) {
	t.Parallel()
	comesBack := func(t interface{ Fatalf(string, ...any) }, plain []byte) {
		coded := text.appendTo([]byte("head"), plain)
		if got, ok := text.parse(coded[4:]); !ok || !bytes.Equal(got, plain) {
			t.Fatalf("%q is coded as %x, and comes back as (%q, %t)", plain, coded[4:], got, ok)
		}
	}
	for place := range 256 { // each symbol in each place
		for b := range 256 {
			comesBack(t, []byte{byte(place), byte(b), byte(place), byte(b)})
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		comesBack(t, rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		comesBack(t, []byte(rapid.String().Draw(t, "text")))
	})
}

// TestTextIsShorter: what services answer is stored in fewer bytes, and what would not be is stored as it is.
func TestTextIsShorter(t *testing.T) {
	t.Parallel()
	random := make([]byte, 300)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for _, c := range []struct {
		body []byte
		most float64 // of its size
	}{
		{[]byte(payment), 0.65},
		{[]byte(`{"type":"https://example.com/probs/no-credit","title":"You do not have enough credit.","balance":30}`), 0.7},
		{[]byte(`{"status":"paid","name":"Пётр Сергеевич Смирнов","city":"Новосибирск"}`), 0.75},
		{[]byte(`{"ok":true}`), 1},
		{[]byte("Thank you! Your payment of 19.00 EUR was received."), 0.85},
		{random, 1},
		{[]byte(strings.Repeat(payment, 20)), 1}, // the server compresses it
		{nil, 1},
	} {
		response := store.Response{Status: 201, Body: c.body}
		plain, coded := appendAnswer(nil, &response, formPlain), appendAnswer(nil, &response, knownForms)
		if float64(len(coded)) > float64(len(plain))*c.most {
			t.Errorf("%.20q of %d bytes takes %d", c.body, len(plain), len(coded))
		}
		for _, stored := range [][]byte{plain, coded} {
			got, err := parseAnswer(stored)
			if err != nil || got.Status != 201 || !bytes.Equal(got.Body, c.body) {
				t.Errorf("%.20q comes back as (%d, %.20q, %v)", c.body, got.Status, got.Body, err)
			}
		}
	}
}

// TestTornText: an answer that lacks its end, or has something behind it, is not given as whole.
func TestTornText(t *testing.T) {
	t.Parallel()
	coded := text.appendTo(nil, []byte(payment))
	for _, damaged := range [][]byte{append(bytes.Clone(coded), 0xff), {0xff}, {0xff, 0xff}} {
		if got, ok := text.parse(damaged); ok {
			t.Errorf("%x is taken for %q", damaged, got)
		}
	}
	response := store.Response{Status: 201, Body: []byte(payment)}
	stored := appendAnswer(nil, &response, knownForms)
	if got, err := parseAnswer(append(stored, 0xff)); err == nil {
		t.Errorf("a damaged answer is read as %q", got.Body)
	}
	if hex.EncodeToString(stored[:2]) != "92"+"83" {
		t.Errorf("an answer begins with %x, from which the views do not read the status", stored[:2])
	}
}

// TestLongestText: no body is coded that is longer than the bound, and none that is longer is read: a few damaged bytes
// would come to many.
func TestLongestText(t *testing.T) {
	t.Parallel()
	long := []byte(strings.Repeat(payment, 20))
	head := appendHead(nil, &store.Response{Status: 201}, flagCoded)
	for n, whole := range map[int]bool{longestCoded: true, longestCoded + 1: false, len(long): false} {
		response := store.Response{Status: 201, Body: long[:n]}
		coded := text.appendTo(bytes.Clone(head), response.Body)
		if written := appendAnswer(nil, &response, knownForms); bytes.Equal(written, coded) != whole {
			t.Errorf("a body of %d bytes is written as %d", n, len(written))
		}
		if got, err := parseAnswer(coded); (err == nil) != whole || whole && !bytes.Equal(got.Body, response.Body) {
			t.Errorf("S8: %d bytes that are coded are read as %d (%v)", n, len(got.Body), err)
		}
	}
}

// FuzzText: whatever is read as text is written so that it reads the same, and nothing panics.
func FuzzText(f *testing.F) {
	f.Add(text.appendTo(nil, []byte(payment)))
	f.Fuzz(func(t *testing.T, coded []byte) {
		plain, ok := text.parse(coded)
		if !ok {
			return
		}
		if again := text.appendTo(nil, plain); !bytes.Equal(again, coded) {
			t.Errorf("%x is %q, which is %x", coded, plain, again)
		}
	})
}

func BenchmarkText(b *testing.B) {
	coded := text.appendTo(nil, []byte(payment))
	b.Run("write", func(b *testing.B) {
		dst := make([]byte, 0, 256)
		for b.Loop() {
			dst = text.appendTo(dst[:0], []byte(payment))
		}
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, ok := text.parse(coded); !ok {
				b.Fatal("it is damaged")
			}
		}
	})
}
