package oncewardfiber

import (
	"bytes"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"
)

// body is the body of a request: in memory, or a stream.
type body struct {
	content []byte
	offset  int
	stream  io.Reader // nil if the body is in memory
	length  int       // the announced length of the stream; negative for chunked encoding
	from    *fasthttp.RequestCtx
	ended   bool // the stream was read to its end
}

// open sets the body of the request.
func (b *body) open(r *http.Request, c fiber.Ctx) (err error) {
	from := c.Request()
	r.Body = b
	if from.IsBodyStream() {
		b.stream, b.length, b.from = from.BodyStream(), from.Header.ContentLength(), c.RequestCtx()
		r.ContentLength = max(int64(from.Header.ContentLength()), -1)
		return nil
	}
	b.content, err = content(from)
	r.ContentLength = int64(len(b.content))
	return err
}

// content returns a body in memory. fasthttp parses forms in advance and writes them again with the fields in a varying
// order, or replaces them by an error. Then a retry would look like a different request, or a different request like a
// retry.
func content(from *fasthttp.Request) ([]byte, error) {
	boundary := from.Header.MultipartFormBoundary()
	if len(boundary) == 0 || len(from.Header.ContentEncoding()) > 0 {
		return from.Body(), nil
	}
	form, err := from.MultipartForm()
	if err != nil { // the form was not parsed in advance
		return from.Body(), nil
	}
	return formContent(form, string(boundary))
}

// formContent writes a form in the order of its names. Handlers see only the order of values within a name.
func formContent(form *multipart.Form, boundary string) ([]byte, error) {
	var content bytes.Buffer
	to := multipart.NewWriter(&content)
	if err := to.SetBoundary(boundary); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(form.Value)) {
		for _, value := range form.Value[name] {
			if err := to.WriteField(name, value); err != nil {
				return nil, err
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(form.File)) {
		for _, file := range form.File[name] {
			if err := writeFile(to, file); err != nil {
				return nil, err
			}
		}
	}
	err := to.Close()
	return content.Bytes(), err
}

func writeFile(to *multipart.Writer, header *multipart.FileHeader) error {
	part, err := to.CreatePart(header.Header)
	if err != nil {
		return err
	}
	file, err := header.Open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // the file was only read
	_, err = io.Copy(part, file)
	return err
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	if b.stream != nil {
		n, err := b.stream.Read(p)
		b.offset += n
		if err == io.EOF && !b.whole() {
			err = io.ErrUnexpectedEOF
		}
		b.ended = err == io.EOF
		return n, err
	}
	if b.offset >= len(b.content) {
		return 0, io.EOF
	}
	n := copy(p, b.content[b.offset:])
	b.offset += n
	return n, nil
}

// whole reports whether a stream that has ended is complete. fasthttp treats the end of the connection as the end of
// the body. So a chunked body counts as incomplete if the client has closed the connection.
func (b *body) whole() bool {
	if b.length >= 0 {
		return b.offset >= b.length
	}
	return !closed(b.from)
}

// Close implements [io.Closer].
func (b *body) Close() error { return nil }

// handOn sets fiber's body to the content of a stream, which the guard has read. A body in memory is still in place.
func (b *body) handOn(c fiber.Ctx, r *http.Request) error {
	if b.stream == nil {
		return nil
	}
	content, err := io.ReadAll(r.Body)
	c.Request().SetBodyRaw(content)
	return err
}

// leftOver reports whether a part of the stream was not read. fasthttp would read that part as the next request.
func (b *body) leftOver() bool { return b.stream != nil && !b.ended }
