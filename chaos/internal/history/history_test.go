package history_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/chaos/internal/history"
)

func path(t *testing.T) string { return filepath.Join(t.TempDir(), "history.jsonl") }

func recorder(t *testing.T, path string) *history.Recorder {
	t.Helper()
	r, err := history.NewRecorder(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A test that closed it has looked at the error itself.
		_ = r.Close()
	})
	return r
}

func add(t *testing.T, r *history.Recorder, facts ...any) {
	t.Helper()
	for _, fact := range facts {
		if err := r.Add(fact); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, paths ...string) *history.Run {
	t.Helper()
	run, err := history.Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func appendText(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestEverythingComesBack(t *testing.T) {
	t.Parallel()
	want := &history.Run{
		Attempts: []history.Attempt{{
			Scope: "s", Key: "k", Kind: "payment", Payload: "p", Reference: "r", Sent: 1, Returned: 2, Status: 200, Code: "c",
			Replayed: true, Body: "line\nbreak \x00 \"quoted\"", Headers: map[string]string{"Location": "/x"}, Lost: "why",
		}},
		Writes: []history.Write{{
			Node: "n", Began: 1, Ended: 2, Seq: 1<<63 + 3, Call: history.CallComplete, Scope: "s", Key: "k", Attempt: 1<<62 + 1,
			Granted: true, Accepted: true, Digest: "d", Err: "e",
		}},
		Records: []history.Record{{
			Scope: "s", Key: "k", State: "unknown", Attempt: 7, Status: 201, Digest: "d", Operation: "POST /x", DeadLetter: true,
		}},
		Effects:  []history.Effect{{Book: "charges", ID: "e", Scope: "s", Key: "k", Reference: "r", Amount: 5, Declined: true}},
		Rows:     []history.Row{{Table: "payment", Scope: "s", Key: "k", Reference: "r", State: "new", ID: "1"}},
		Messages: []history.Message{{ID: "m", Scope: "s", Key: "k", Topic: "t", State: "done", DownstreamKey: "d"}},
		Faults:   map[string]int{"kill": 2},
		Planned:  []string{"kill", "pause"},
	}
	clients, quiet := path(t), path(t)
	add(t, recorder(t, clients), want.Attempts[0], want.Writes[0], history.Fault("kill"), history.Plan("kill"))
	add(t, recorder(t, quiet), want.Records[0], want.Effects[0], want.Rows[0], want.Messages[0],
		history.Fault("kill"), history.Plan("pause"))

	// The files are read while they are still open: a line is there once Add has returned.
	if got := read(t, clients, quiet); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestOnlyFactsAreRecorded(t *testing.T) {
	t.Parallel()
	r := recorder(t, path(t))
	for _, fact := range []any{nil, "text", &history.Attempt{}, history.Run{}} {
		if err := r.Add(fact); err == nil {
			t.Errorf("Add(%T) returned no error", fact)
		}
	}
}

func TestLinesOfManyWritersStayWhole(t *testing.T) {
	t.Parallel()
	const writers, lines = 8, 50
	file := path(t)
	r := recorder(t, file)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for l := range lines {
				body := strings.Repeat("x", 40*l)
				if err := r.Add(history.Attempt{Scope: "s", Key: fmt.Sprint(w, "-", l), Body: body}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	keys := make(map[string]bool)
	for _, a := range read(t, file).Attempts {
		keys[a.Key] = true
	}
	if len(keys) != writers*lines {
		t.Errorf("%d different attempts came back, want %d", len(keys), writers*lines)
	}
}

func TestLastLineMayBeCutOff(t *testing.T) {
	t.Parallel()
	file := path(t)
	first := recorder(t, file)
	add(t, first, history.Fault("kill"))
	appendText(t, file, `{"fault":"kil`)
	if got := read(t, file).Faults; !reflect.DeepEqual(got, map[string]int{"kill": 1}) {
		t.Errorf("faults before the restart: %v", got)
	}

	// The next process that writes to the file does not continue the line.
	add(t, recorder(t, file), history.Fault("pause"))
	if got := read(t, file).Faults; !reflect.DeepEqual(got, map[string]int{"kill": 1, "pause": 1}) {
		t.Errorf("faults after the restart: %v", got)
	}
}

func TestLongCutOffLineIsDropped(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"alone": "", "behind another": `{"fault":"kill"}` + "\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := path(t)
			appendText(t, file, before+`{"fault":"`+strings.Repeat("x", 200_000))
			add(t, recorder(t, file), history.Fault("pause"))
			text, err := os.ReadFile(file)
			if want := before + `{"fault":"pause"}` + "\n"; err != nil || string(text) != want {
				t.Errorf("%d bytes, error %v, want %q", len(text), err, want)
			}
		})
	}
}

func TestBrokenFilesAreErrors(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a broken line in the middle": "{\"fault\":\"a\"}\n{\"fault\n{\"fault\":\"b\"}\n",
		"nothing that is known":       "{\"later\":{}}\n",
		"an end without a beginning":  "{\"end\":{\"node\":\"n\",\"seq\":4}}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := path(t)
			appendText(t, file, text)
			if _, err := history.Read(file); err == nil || !strings.Contains(err.Error(), "line ") {
				t.Errorf("error %v, want one that names the line", err)
			}
		})
	}
	if _, err := history.Read(path(t)); err == nil {
		t.Error("a file that does not exist was read")
	}
}
