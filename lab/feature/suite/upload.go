package suite

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// WantFilesRemoved sends a file, without a key, to a handler that answers with its [TemporaryFile], and looks whether
// that was removed at the end of the request.
func WantFilesRemoved(t *testing.T, h http.Handler) {
	t.Helper()
	var content bytes.Buffer
	form := multipart.NewWriter(&content)
	part, err := form.CreateFormFile("scan", "scan.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(part, "scan"); err != nil {
		t.Fatal(err)
	}
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	response, err := server.Client().Post(server.URL+"/accounts/a/payments", form.FormDataContentType(), &content)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	name, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %d %s, error %v", response.StatusCode, name, err)
	}
	server.Close() // it waits for the end of the request
	if _, err := os.Stat(string(name)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file %q is still there: error %v", name, err)
	}
}

// TemporaryFile is the name of the file that holds what was uploaded.
func TemporaryFile(t *testing.T, r *http.Request) string {
	if err := r.ParseMultipartForm(1); err != nil {
		t.Error(err)
		return ""
	}
	file, err := r.MultipartForm.File["scan"][0].Open()
	if err != nil {
		t.Error(err)
		return ""
	}
	defer func() { _ = file.Close() }() // it was only looked at
	return file.(*os.File).Name()
}
