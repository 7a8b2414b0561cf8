package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// lossy is a transport that loses the reply to the next call of a tool: the
// server has executed the call, and the client does not see the result.
type lossy struct {
	out io.Writer

	mu   sync.Mutex
	lose string // the tool whose reply is lost next
}

func (l *lossy) loseNext(tool string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = tool
}

// RoundTrip implements [http.RoundTripper].
func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	var sent []byte
	if r.Body != nil {
		var err error
		if sent, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !l.loses(sent) {
		return response, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return nil, err
	}
	fmt.Fprintln(l.out, "  … the reply is lost; the call is made again")
	return nil, errors.New("the connection was cut")
}

func (l *lossy) loses(sent []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lose == "" || !bytes.Contains(sent, []byte(`"tools/call"`)) || !bytes.Contains(sent, []byte(l.lose)) {
		return false
	}
	l.lose = ""
	return true
}
