package client

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// keepBody makes sure that the body can be sent again: it uses the caller's GetBody, or keeps the body in memory.
func (op *operation) keepBody(req *http.Request) error {
	if req.Body == nil || req.Body == http.NoBody || req.GetBody != nil {
		return nil
	}
	limit := op.transport.config.BodyLimit
	if req.ContentLength > limit {
		return fmt.Errorf("%w: %d bytes are more than %d", ErrBodyTooLarge, req.ContentLength, limit)
	}
	content, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	switch size := int64(len(content)); {
	case err != nil:
		return fmt.Errorf("client: the request body cannot be read: %w", err)
	case size > limit:
		return fmt.Errorf("%w: it is more than %d bytes", ErrBodyTooLarge, limit)
	case req.ContentLength > 0 && size != req.ContentLength:
		return fmt.Errorf("client: the request body has %d bytes, and not %d as announced", size, req.ContentLength)
	}
	closeBody(req)
	op.request.ContentLength, op.request.TransferEncoding = int64(len(content)), nil
	op.request.GetBody = func() (io.ReadCloser, error) {
		if len(content) == 0 {
			return http.NoBody, nil
		}
		return io.NopCloser(bytes.NewReader(content)), nil
	}
	op.request.Body, err = op.request.GetBody()
	return err
}

// peekLimit is how many bytes are read of an answer that may contain retry instructions, whatever ReadAnswer is.
const peekLimit = 64 << 10

// capture reads an answer into memory, unless the answer is too long or a stream. In that
// case the bytes already read are put in front of the rest. An error means that the
// answer was cut off. The attempt's timeout ends when its answer has been read or closed.
func (op *operation) capture(resp *http.Response, cancel context.CancelFunc) error {
	op.answer.content = nil
	limit := op.transport.config.ReadAnswer
	if contentType(resp) == "text/event-stream" {
		limit = 0
	}
	if peeked(resp) {
		limit = max(limit, peekLimit)
	}
	var whole bool
	var err error
	switch {
	case resp.Body == http.NoBody: // also for an answer to HEAD, whatever length it announces
		whole = true
	case limit > 0 && resp.ContentLength <= limit:
		whole, err = op.read(resp, limit)
	}
	switch {
	case whole || err != nil:
		_ = resp.Body.Close() // it is read to its end, or useless
		if cancel != nil {
			cancel()
		}
	case cancel != nil:
		resp.Body = &endingBody{ReadCloser: resp.Body, end: cancel}
	}
	if whole {
		op.answer.Reset(op.answer.content)
		resp.Body = &op.answer
	}
	return err
}

// read reads an answer up to the limit and reports whether it read the whole answer.
func (op *operation) read(resp *http.Response, limit int64) (whole bool, err error) {
	if resp.ContentLength >= 0 {
		op.answer.content = make([]byte, resp.ContentLength)
		_, err = io.ReadFull(resp.Body, op.answer.content)
	} else {
		op.answer.content, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	}
	if err != nil {
		return false, fmt.Errorf("the answer %d was cut off: %w", resp.StatusCode, err)
	}
	if int64(len(op.answer.content)) <= limit {
		return true, nil
	}
	rest := resp.Body
	resp.Body = &prefixedBody{Reader: io.MultiReader(bytes.NewReader(op.answer.content), rest), Closer: rest}
	return false, nil
}

// peeked reports whether an answer may contain retry instructions: a problem, or the status of the operation.
func peeked(resp *http.Response) bool {
	kind := contentType(resp)
	return resp.StatusCode >= http.StatusBadRequest && kind == problemType ||
		resp.StatusCode == http.StatusAccepted && kind == "application/json"
}

// memoryBody is an answer's body that was read into memory, or the beginning of such a body.
type memoryBody struct {
	bytes.Reader
	content []byte
}

// Close implements [io.Closer].
func (*memoryBody) Close() error { return nil }

// prefixedBody is a body whose beginning was already read.
type prefixedBody struct {
	io.Reader
	io.Closer
}

// endingBody ends the timeout of an attempt when its answer is closed.
type endingBody struct {
	io.ReadCloser
	end context.CancelFunc
}

// Close implements [io.Closer].
func (b *endingBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// discard closes an answer that is not returned. It does not read the rest: the rest is
// too long, or a stream that may never end, and reading it would delay the next attempt.
func discard(resp *http.Response) {
	if resp != nil {
		_ = resp.Body.Close() // the answer is useless now
	}
}
