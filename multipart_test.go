package onceward_test

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// uploadedFile parses a form that is too large for memory and returns where its file went.
func uploadedFile(t *testing.T, r *http.Request) string {
	if err := r.ParseMultipartForm(1); err != nil {
		t.Fatal(err)
	}
	file, err := r.MultipartForm.File["upload"][0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	onDisk, ok := file.(*os.File)
	if !ok {
		t.Fatalf("the upload is a %T, want a file on disk", file)
	}
	return onDisk.Name()
}

func TestTemporaryFilesOfAFormAreRemoved(t *testing.T) {
	t.Parallel()
	const media = "multipart/form-data; boundary=B"
	body := "--B\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x", 100_000) + "\r\n--B--\r\n"
	for name, then := range map[string]func(){
		"it answers": func() {}, "it panics": func() { panic("the handler's panic") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var path string
			handler := &counted{then: func(_ http.ResponseWriter, r *http.Request) {
				path = uploadedFile(t, r)
				if _, err := os.Stat(path); err != nil {
					t.Errorf("F5: the handler cannot see its file: %v", err)
				}
				then()
			}}
			h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onceward.FailureUnknown))
			panicOf(func() { post(h, "k", body, withHeader("Content-Type", media)) })
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				os.Remove(path)
				t.Errorf("F5: the temporary file is left behind: %v", err)
			}
			handler.wantRuns(t, "F5", 1)
		})
	}
}
