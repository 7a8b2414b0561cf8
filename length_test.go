package onceward_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestALengthThatIsWrong: the answer is known as a whole before its first byte is sent, and so is its length.
func TestALengthThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "hello", strings.Repeat("x", 5000)} {
		for _, length := range []string{"3", "6", "9999", "-1", "many"} {
			for _, status := range []int{http.StatusCreated, http.StatusTooManyRequests} {
				t.Run(fmt.Sprint(status, " ", length, " for ", len(body)), func(t *testing.T) {
					t.Parallel()
					server, _ := serveHandler(t, func(w http.ResponseWriter, _ *http.Request) {
						w.Header().Set("Content-Length", length)
						w.WriteHeader(status)
						io.WriteString(w, body)
					})
					for range 2 {
						a, err := trySend(t.Context(), server, "k", `{}`)
						if err != nil || a.status != status || a.body != body {
							t.Errorf("A2: got %d with %d bytes, %v; want %d with %d", a.status, len(a.body), err, status, len(body))
						}
						if got := a.header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
							t.Errorf("A2: Content-Length is made anew, but is %q for %d bytes", got, len(body))
						}
					}
				})
			}
		}
	}
}
