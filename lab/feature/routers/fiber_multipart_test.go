package routers_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/onceward/onceward"
	oncewardfiber "github.com/onceward/onceward/adapter/fiber"
	"github.com/onceward/onceward/lab/feature/suite"
)

// form is a form with files, as a client sends it.
type form struct {
	boundary string
	memo     string
	chunked  bool
}

// body is the form in the syntax of multipart, which a multipart.Writer does not write for every boundary.
func (f form) body(t *testing.T) []byte {
	t.Helper()
	var content bytes.Buffer
	w := multipart.NewWriter(&content)
	for i := range 8 {
		if err := w.WriteField(fmt.Sprint("field-", i), fmt.Sprint("value ", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteField("memo", f.memo); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		part, err := w.CreateFormFile(fmt.Sprint("file-", i), "scan.txt")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, strings.Repeat("scan ", 10+i))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(content.Bytes(), []byte(w.Boundary()), []byte(f.boundary))
}

// postFiber sends a form.
func postFiber(t *testing.T, caller suite.HTTP, f form) (status int, replayed bool) {
	t.Helper()
	var body io.Reader = bytes.NewReader(f.body(t))
	if f.chunked {
		body = io.MultiReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, caller.URL+"/accounts/a/payments", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", `multipart/form-data; boundary="`+f.boundary+`"`)
	r.Header.Set("Idempotency-Key", "k")
	response, err := caller.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode, response.Header.Get("Idempotent-Replayed") == "true"
}

// TestForms: fasthttp reads a form in advance and forgets in which order it came. A retry is the same request all the
// same, and another form is another.
func TestForms(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config   fiber.Config
		boundary string
	}{
		"read in advance":     {boundary: "b"},
		"not read in advance": {config: fiber.Config{DisablePreParseMultipartForm: true}, boundary: "b"},
		"streamed":            {config: fiber.Config{StreamRequestBody: true}, boundary: "b"},
		"streamed as it came": {
			config: fiber.Config{StreamRequestBody: true, DisablePreParseMultipartForm: true}, boundary: "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := fiber.New(test.config)
			app.Post("/accounts/:account/payments", oncewardfiber.Handler(guardOfScope(t, onceward.SingleScope("shop")),
				func(c fiber.Ctx) error {
					file, err := c.FormFile("file-2")
					if err != nil || c.FormValue("field-7") != "value 7" || file.Size != 60 {
						t.Errorf("the form is not whole: %v, %v, field %q", file, err, c.FormValue("field-7"))
					}
					return c.SendStatus(http.StatusCreated)
				}, reserved))
			caller := listen(t, app).(suite.HTTP)
			first := form{boundary: test.boundary, memo: "first"}
			for i := range 10 {
				if status, replayed := postFiber(t, caller, first); status != http.StatusCreated || replayed != (i > 0) {
					t.Fatalf("time %d: status %d, replayed %t", i, status, replayed)
				}
			}
			again := first
			again.boundary = "c" + test.boundary[1:]
			if status, replayed := postFiber(t, caller, again); status != http.StatusCreated || !replayed {
				t.Errorf("with another boundary: status %d, replayed %t", status, replayed)
			}
			if again.chunked = !test.config.StreamRequestBody; again.chunked {
				if status, replayed := postFiber(t, caller, again); status != http.StatusCreated || !replayed {
					t.Errorf("in chunks: status %d, replayed %t", status, replayed)
				}
			}
			other := form{boundary: test.boundary, memo: "other"}
			if status, _ := postFiber(t, caller, other); status != http.StatusUnprocessableEntity {
				t.Errorf("another form: status %d, want a mismatch", status)
			}
		})
	}
}

// TestFormOfWrongBoundary: fasthttp reads a form whose boundary is too long, and cannot write it again.
func TestFormOfWrongBoundary(t *testing.T) {
	t.Parallel()
	app := fiber.New()
	app.Post("/accounts/:account/payments", oncewardfiber.Handler(guardOfScope(t, onceward.SingleScope("shop")),
		func(fiber.Ctx) error {
			t.Error("a request ran whose form cannot be told from others")
			return nil
		}, reserved))
	if status, _ := postFiber(t, listen(t, app).(suite.HTTP), form{boundary: strings.Repeat("b", 80)}); status != 400 {
		t.Errorf("status %d, want 400", status)
	}
}
