package onceward

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// requestBody is a request's body. The guard reads it completely before it reserves, and the handler then reads it from
// memory.
type requestBody struct {
	mu      sync.Mutex
	content []byte
	offset  int
	begun   bool // the handler has called Read, even if the body is empty
	closed  bool
}

// read reads the body up to the limit (rule F5). Chunked encoding makes no difference.
func (b *requestBody) read(r *http.Request, buffer *[]byte, limit int64) *Problem {
	if r.Body == nil || r.Body == http.NoBody {
		return consumed(r, 0)
	}
	content, err := readUpTo(r.Body, (*buffer)[:0], r.ContentLength, limit)
	*buffer = content
	switch {
	case err != nil:
		return unreadableBody(err)
	case int64(len(content)) > limit:
		return tooLarge(limit)
	}
	if len(content) > 0 {
		b.content = content
	}
	return consumed(r, len(content))
}

// consumed refuses a body if something in front of the guard read a part or all of it: fewer bytes are left than were
// announced. If the length is unknown, the loss of a part cannot be detected, and the loss of the whole body only if it
// was parsed as a form. A body that was decoded may have another length.
func consumed(r *http.Request, left int) *Problem {
	switch announced := r.ContentLength; {
	case left == 0 && announced <= 0 && len(r.PostForm) == 0 && r.MultipartForm == nil:
		return nil
	case left > 0 && (int64(left) >= announced ||
		r.Header.Get("Content-Encoding") != "" || r.Header.Get("Content-Length") == ""):
		return nil
	}
	return problemBodyConsumed.detailed("something in front of the guard read it, or replaced it and left its length, " +
		"and without it two different requests would look the same; nothing was executed")
}

// unreadableBody returns the problem of a body that could not be read. It is a separate function so that a readable
// body costs no allocation.
func unreadableBody(err error) *Problem {
	var maxBytes *http.MaxBytesError
	if errors.As(err, &maxBytes) {
		return tooLarge(maxBytes.Limit)
	}
	return problemBodyIncomplete.detailed("it ended before its announced length, or could not be read; " +
		"nothing was executed")
}

// readUpTo reads at most one byte more than the limit, into dst if it is large enough.
func readUpTo(r io.Reader, dst []byte, announced, limit int64) ([]byte, error) {
	// With room for one byte more than announced, the read that finds the end needs no larger buffer. Beyond the usual
	// limit, memory grows with what was received, not with what the client announced.
	if room := min(announced, defaultBodyLimit) + 1; room > int64(cap(dst)) {
		dst = make([]byte, 0, room)
	}
	for int64(len(dst)) <= limit {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		room := dst[len(dst):min(int64(cap(dst)), limit+1)]
		n, err := r.Read(room)
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
	return dst, nil
}

// Read implements [io.Reader].
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	b.begun = true
	if b.offset >= len(b.content) {
		return 0, io.EOF
	}
	n := copy(p, b.content[b.offset:])
	b.offset += n
	return n, nil
}

// wasRead reports whether the handler read from the body, even if it was empty.
func (b *requestBody) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.begun
}

// Close implements [io.Closer].
func (b *requestBody) Close() error {
	b.close()
	return nil
}

// close makes every later read fail: the body's memory is about to be reused, and a goroutine of the handler must not
// see it.
func (b *requestBody) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}
