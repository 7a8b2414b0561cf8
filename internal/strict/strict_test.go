package strict_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/strict"
)

type line struct {
	Item  string `json:"item"`
	Count int    `json:"count"`
}

type base struct {
	ID string `json:"id"`
}

type carried struct {
	base
	Price   int64            `json:"price"`
	Charge  string           `json:"charge,omitempty"`
	At      time.Time        `json:"at,omitzero"`
	Note    *string          `json:"note"`
	Lines   []line           `json:"lines"`
	ByName  map[string]*line `json:"by_name,omitempty"`
	private int
}

// TestStrictDecoding: what the type wrote it reads, and what another one wrote it does not take for zero.
func TestStrictDecoding(t *testing.T) {
	t.Parallel()
	_ = carried{private: 1}.private
	whole, err := json.Marshal(carried{
		base: base{"b1"}, Price: 1, Charge: "c", At: time.Now(), Note: new(string), Lines: []line{{"x", 1}},
		ByName: map[string]*line{"x": {"x", 1}, "none": nil},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ data, want string }{
		"all of it":                   {string(whole), ""},
		"what is left out when empty": {`{"id":"","price":0,"note":null,"lines":null}`, ""},
		"a pointer that was added":    {`{"id":"","price":0,"lines":[]}`, ""},
		"large letters":               {`{"ID":"","Price":0,"Lines":[]}`, ""},
		"a field that is missing":     {`{"id":"","lines":[]}`, `lacks the field "price"`},
		"an embedded one":             {`{"price":0,"lines":[]}`, `lacks the field "id"`},
		"one in a list":               {`{"id":"","price":0,"lines":[{"item":"x"}]}`, `lacks the field "lines.0.count"`},
		"one in a map": {
			`{"id":"","price":0,"lines":[],"by_name":{"a":{"count":1}}}`,
			`lacks the field "by_name.a.item"`,
		},
		"a field that is not known":    {`{"id":"","price":0,"lines":[],"fee":3}`, "unknown field"},
		"one that is not known within": {`{"id":"","price":0,"lines":[{"item":"x","count":1,"size":3}]}`, "unknown field"},
		"another type":                 {`{"id":"","price":"0","lines":[]}`, "does not fit its type"},
		"more than one value":          {`{"id":"","price":0,"lines":[]} {}`, "followed by more"},
		"null for a number":            {`{"id":"","price":null,"lines":[]}`, `lacks the field "price"`},
		"null for one in a list":       {`{"id":"","price":0,"lines":[{"item":"","count":null}]}`, `"lines.0.count"`},
		"nothing":                      {``, "does not fit its type"},
		"null":                         {`null`, `lacks the field`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := strict.Decode([]byte(c.data), new(carried), true)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
