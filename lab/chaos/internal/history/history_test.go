package history_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/onceward/onceward/lab/chaos/internal/history"
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

func add(t *testing.T, r *history.Recorder, attempts ...history.Attempt) {
	t.Helper()
	for _, a := range attempts {
		if err := r.Add(a); err != nil {
			t.Fatal(err)
		}
	}
}

// keys are those of the attempts in a file.
func keys(t *testing.T, path string) []string {
	t.Helper()
	var list []string
	for _, a := range read(t, path).Attempts {
		list = append(list, a.Key)
	}
	return list
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
	different := make(map[string]bool)
	for _, key := range keys(t, file) {
		different[key] = true
	}
	if len(different) != writers*lines {
		t.Errorf("%d different attempts came back, want %d", len(different), writers*lines)
	}
}

func TestLastLineMayBeCutOff(t *testing.T) {
	t.Parallel()
	file := path(t)
	add(t, recorder(t, file), history.Attempt{Key: "first"})
	appendText(t, file, `{"attempt":{"key":"cut o`)
	if got := keys(t, file); !slices.Equal(got, []string{"first"}) {
		t.Errorf("attempts before the restart: %v", got)
	}

	// The next process that writes to the file does not continue the line.
	add(t, recorder(t, file), history.Attempt{Key: "second"})
	if got := keys(t, file); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("attempts after the restart: %v", got)
	}
}

func TestLongCutOffLineIsDropped(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"alone": "", "behind another": `{"planned":"kill"}` + "\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := path(t)
			appendText(t, file, before+`{"planned":"`+strings.Repeat("x", 200_000))
			if err := recorder(t, file).Close(); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(file); err != nil || string(text) != before {
				t.Errorf("%d bytes, error %v, want %q", len(text), err, before)
			}
		})
	}
}

func TestBrokenFilesAreErrors(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a broken line in the middle": "{\"planned\":\"a\"}\n{\"planned\n{\"planned\":\"b\"}\n",
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
