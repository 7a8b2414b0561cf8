package history_test

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
)

// quiet is a run with every field of everything that is harvested.
func quiet() *history.Run {
	return &history.Run{
		Records: []history.Record{
			{
				Scope: "s", Key: "k", State: "unknown", Attempt: 1<<62 + 1, Status: 201, Body: "{\"a\":\n\"<b>\"}", Digest: "d",
				Operation: "POST /x", DeadLetter: true,
			},
			{Scope: "s", Key: "l", State: "completed", Attempt: 2},
		},
		Effects: []history.Effect{{
			Book: "charges", ID: "e", Scope: "s", Key: "k", Reference: "r", Amount: 5,
			Stray: true, Declined: true,
		}},
		Rows: []history.Row{
			{
				Table: "booking", Scope: "s", Key: "k", Reference: "r", Item: "concert", State: "confirmed", ID: "1",
				Stray: true, Late: true, Number: 2, Place: 3,
			},
		},
		Stock:    []history.Stock{{Item: "concert", Total: 10, Left: 9}, {Item: "circus"}},
		Messages: []history.Message{{ID: "m", Scope: "s", Key: "k", Topic: "t", State: "done"}},
		Audits: []history.Audit{
			{Scope: "s", Key: "k", Attempt: 3, Actor: "olga", Action: "bust", Reason: "asked for", Outcome: "done"},
		},
		Steps:       []history.Step{{Began: 1, Ended: 2, Clock: 3}},
		FailOvers:   []history.FailOver{{Fault: "kill", Began: 1, Ended: 2, Slots: [][2]int{{0, 5460}, {7000, 7000}}}},
		FrontLosses: []history.FrontLoss{{Began: 3, Ended: 4}},
		Slots:       []history.Slot{{Scope: "s", Key: "k", Slot: 7000}},
		Faults:      map[string]int{"kill": 2, "pause": 0},
		Planned:     []string{"pause", "kill"}, Unsettled: true,
	}
}

// wantAllSet reports the fields of a struct that hold nothing, so that a field that is added later is not forgotten
// here.
func wantAllSet(t *testing.T, value any) {
	t.Helper()
	v := reflect.ValueOf(value)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves %s.%s empty", v.Type(), v.Type().Field(i).Name)
		}
	}
}

func TestSavedRunComesBack(t *testing.T) {
	t.Parallel()
	want := quiet()
	for _, full := range []any{
		want.Records[0], want.Effects[0], want.Rows[0], want.Stock[0], want.Messages[0],
		want.Audits[0], want.Steps[0], want.FailOvers[0], want.FrontLosses[0], want.Slots[0],
	} {
		wantAllSet(t, full)
	}
	file := path(t)
	appendText(t, file, `{"planned":"of an earlier run"}`+"\n")
	if err := history.Save(file, want); err != nil {
		t.Fatal(err)
	}
	if got := read(t, file); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A run that was kept is read from the files of its clients, of its nodes, and of what was harvested: nothing twice.
func TestKeptRunComesBack(t *testing.T) {
	t.Parallel()
	attempt := history.Attempt{
		Scope: "s", Key: "k", Kind: "payment", Payload: "p", Reference: "r", Amount: 5, Sent: 1, Returned: 2, Status: 200, Code: "c",
		Replayed: true, Body: "line\nbreak \x00 \"quoted\"", Headers: map[string]string{"Location": "/x"}, Lost: "why",
	}
	wantAllSet(t, attempt)
	clients, nodes, saved := path(t), path(t), path(t)
	add(t, recorder(t, clients), attempt)
	j := journal(t, nodes, "n")
	j.End(history.Write{Seq: j.Begin(history.Write{Call: history.CallReserve, Scope: "s", Key: "k"}), Attempt: 1, Accepted: true})

	// The files are read while they are still open: a line is there once Add has returned.
	want := read(t, nodes, clients)
	if !reflect.DeepEqual(want.Attempts, []history.Attempt{attempt}) || len(want.Writes) != 1 {
		t.Errorf("got %+v and %+v", want.Attempts, want.Writes)
	}
	harvest := quiet()
	harvest.Attempts, harvest.Writes = want.Attempts, want.Writes
	if err := history.Save(saved, harvest); err != nil {
		t.Fatal(err)
	}
	if got := read(t, nodes, clients, saved); !reflect.DeepEqual(got, harvest) {
		t.Errorf("got  %+v\nwant %+v", got, harvest)
	}
}

func TestSaveSaysWhatFailed(t *testing.T) {
	t.Parallel()
	if err := history.Save(filepath.Join(t.TempDir(), "none", "run"), quiet()); err == nil {
		t.Error("saved to a directory that does not exist")
	}
}
