package onceward_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/onceward"
	"github.com/onceward/onceward/store/memory"
)

// chunked hides the length of a body, so that net/http sends it in chunks.
func chunked(body string) edit {
	return func(r *http.Request) {
		r.Body = io.NopCloser(bufio.NewReader(strings.NewReader(body)))
		r.ContentLength = -1
	}
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	server := startServer(t, newGuard(t, store).Handler(handler, reserved, onceward.BodyLimit(100)))
	atLimit, above := strings.Repeat("x", 100), strings.Repeat("x", 101)

	send(t, server, "k1", above).wantProblem(t, "F5: announced", http.StatusRequestEntityTooLarge, "body-too-large")
	send(t, server, "k2", above, chunked(above)).
		wantProblem(t, "F5: chunked", http.StatusRequestEntityTooLarge, "body-too-large")
	big := strings.Repeat("x", 1<<20)
	send(t, server, "k3", big, chunked(big)).
		wantProblem(t, "F5: far too large", http.StatusRequestEntityTooLarge, "body-too-large")
	handler.wantRuns(t, "F5", 0)
	wantNothingStored(t, "F5: before any reservation", store)

	send(t, server, "k4", atLimit).want(t, "F5: at the limit", http.StatusCreated, false)
	send(t, server, "k4", atLimit, chunked(atLimit)).
		want(t, "F5: chunked or not makes no difference", http.StatusCreated, true)
	handler.wantRuns(t, "F5", 1)
}

func TestDefaultBodyLimitIsOneMebibyte(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	h := newGuard(t, memory.New()).Handler(handler, reserved)
	post(h, "k1", strings.Repeat("x", 1<<20)).want(t, "F5", http.StatusCreated, false)
	post(h, "k2", strings.Repeat("x", 1<<20+1)).wantProblem(t, "F5", http.StatusRequestEntityTooLarge, "body-too-large")
}

func TestBodyLimitsAtTheEdges(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	guard := newGuard(t, memory.New())
	none := guard.Handler(handler, reserved, onceward.BodyLimit(0))
	post(none, "k1", "").want(t, "F5: no body allowed", http.StatusCreated, false)
	post(none, "k2", "x", chunked("x")).
		wantProblem(t, "F5: no body allowed", http.StatusRequestEntityTooLarge, "body-too-large")
	endless := guard.Handler(handler, reserved, onceward.BodyLimit(math.MaxInt64))
	post(endless, "k3", "x").want(t, "F5: a limit that is none", http.StatusCreated, false)
	post(endless, "k4", "x", chunked("x")).want(t, "F5: a limit that is none", http.StatusCreated, false)
	if _, err := guard.Route(reserved, onceward.BodyLimit(-1)); err == nil {
		t.Error("F5: a negative limit was accepted")
	}
}

func TestALimitInFrontOfTheGuard(t *testing.T) {
	t.Parallel()
	store, handler := memory.New(), new(counted)
	h := newGuard(t, store).Handler(handler, reserved)
	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 10)
		h.ServeHTTP(w, r)
	})
	post(limited, "k", "more than ten bytes").wantProblem(t, "F5", http.StatusRequestEntityTooLarge, "body-too-large")
	handler.wantRuns(t, "F5", 0)
	wantNothingStored(t, "F5", store)
}

// dial sends raw bytes and returns the connection, for what http.Client cannot be made to do.
func dial(t testing.TB, address, raw string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, strings.ReplaceAll(raw, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	return conn
}

func readAnswer(t testing.TB, conn net.Conn) answer {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{status: res.StatusCode, header: res.Header, body: string(body)}
}

// head is the start of a request of alice, up to what frames its body.
const head = "POST /payments HTTP/1.1\nHost: test\nAuthorization: Bearer alice\n" +
	"Content-Type: application/json\nConnection: close\n"

func TestBodyCutOff(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"announced":        head + "Idempotency-Key: k\nContent-Length: 50\n\n{\"a\":",
		"in chunks":        head + "Idempotency-Key: k\nTransfer-Encoding: chunked\n\n5\n{\"a\":\n",
		"inside a chunk":   head + "Idempotency-Key: k\nTransfer-Encoding: chunked\n\n20\n{\"a\":",
		"a broken framing": head + "Idempotency-Key: k\nTransfer-Encoding: chunked\n\nzz\n{}\n0\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, handler := memory.New(), new(counted)
			server := startServer(t, newGuard(t, store).Handler(handler, reserved))
			conn := dial(t, server.Listener.Addr().String(), raw)
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			p := readAnswer(t, conn).wantProblem(t, "F5", http.StatusBadRequest, "body-incomplete")
			if !p.Retryable {
				t.Error("A1: the whole request may be sent again, but the problem says it may not")
			}
			handler.wantRuns(t, "F5", 0)
			wantNothingStored(t, "F5", store)
			send(t, server, "k", `{"a":1}`).want(t, "F5: the key is still free", http.StatusCreated, false)
		})
	}
}

func TestTheHandlerReadsTheBodyAsItWasSent(t *testing.T) {
	t.Parallel()
	var seen []byte
	var length int64
	var encodings []string
	handler := &counted{then: func(w http.ResponseWriter, r *http.Request) {
		seen, _ = io.ReadAll(r.Body)
		length, encodings = r.ContentLength, r.TransferEncoding
		if n, err := r.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("F5: a read behind the end: %d, %v", n, err)
		}
		r.Body.Close()
		if _, err := r.Body.Read(make([]byte, 1)); err != http.ErrBodyReadAfterClose {
			t.Errorf("F5: a read after Close: %v", err)
		}
	}}
	server := startServer(t, newGuard(t, memory.New()).Handler(handler, reserved))
	for i, body := range []string{"", "x", ` {"white": "space"}` + "\n", strings.Repeat("0123456789", 50_000)} {
		for kind, edits := range map[string][]edit{"announced": nil, "chunked": {chunked(body)}} {
			send(t, server, fmt.Sprint(kind, i), body, edits...).want(t, "F5", http.StatusOK, false)
			if !bytes.Equal(seen, []byte(body)) || length != int64(len(body)) || encodings != nil {
				t.Errorf("F5: %s: the handler saw %d bytes, length %d, encodings %v; want the %d that were sent", kind,
					len(seen), length, encodings, len(body))
			}
		}
	}
}

func TestExpectContinueIsRefusedBeforeTheBody(t *testing.T) {
	t.Parallel()
	handler := new(counted)
	server := startServer(t, newGuard(t, memory.New()).Handler(handler,
		reserved, onceward.BodyLimit(100), onceward.RequireFirstSent(time.Hour, 0)))
	address := server.Listener.Addr().String()
	for name, test := range map[string]struct {
		header, code string
		status       int
	}{
		"no key":     {"Content-Length: 5\n", "missing-key", http.StatusBadRequest},
		"bad key":    {"Idempotency-Key: a,b\nContent-Length: 5\n", "invalid-key", http.StatusBadRequest},
		"too large":  {"Idempotency-Key: k\nContent-Length: 101\n", "body-too-large", http.StatusRequestEntityTooLarge},
		"first sent": {"Idempotency-Key: k\nContent-Length: 5\n", "first-sent-missing", http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// No byte of the body is sent: an answer comes only if none is waited for, and "100 Continue" would come
			// first.
			conn := dial(t, address, head+"Expect: 100-continue\n"+test.header+"\n")
			readAnswer(t, conn).wantProblem(t, "A5", test.status, test.code)
		})
	}
	t.Run("accepted", func(t *testing.T) {
		server := startServer(t, newGuard(t, memory.New()).Handler(handler, reserved))
		conn := dial(t, server.Listener.Addr().String(),
			head+"Expect: 100-continue\nIdempotency-Key: k\nContent-Length: 2\n\n")
		reader := bufio.NewReader(conn)
		if line, err := reader.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
			t.Fatalf("A5: got %q, %v; want 100 Continue", line, err)
		}
		io.WriteString(conn, "{}")
		reader.ReadString('\n')
		res, err := http.ReadResponse(reader, nil)
		if err != nil || res.StatusCode != http.StatusCreated {
			t.Errorf("A5: got %v, %v; want 201", res, err)
		}
		handler.wantRuns(t, "A5", 1)
	})
}

// TestALengthThatIsWrong: the answer is known as a whole before its first byte is sent, and so is its length. A length
// that is too small, or is none, is replaced. A body that is shorter than announced was cut: no part of it is stored.
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
					announced, err := strconv.Atoi(length)
					cut := err == nil && announced > len(body)
					for i := range 2 {
						a, err := trySend(t.Context(), server, "k", `{}`)
						if cut {
							want := []int{http.StatusInternalServerError, http.StatusConflict}[i]
							a.wantProblem(t, "E8", want, "outcome-unknown")
							continue
						}
						if err != nil || a.status != status || a.body != body {
							t.Errorf("A2: got %d with %d bytes, %v; want %d with %d", a.status, len(a.body), err,
								status, len(body))
						}
						if got := a.header.Get("Content-Length"); got != fmt.Sprint(len(body)) {
							t.Errorf("A2: Content-Length is computed for each answer, but is %q for %d bytes", got,
								len(body))
						}
					}
				})
			}
		}
	}
}

// TestAnAnswerUnderWayAtTheDeadline: a handler that stops in the middle of its answer because its deadline has passed has
// failed. An answer of the announced length is whole, and an answer that began after the deadline was meant as it is.
func TestAnAnswerUnderWayAtTheDeadline(t *testing.T) {
	t.Parallel()
	for _, onFailure := range []onceward.Failure{onceward.FailureUnknown, onceward.FailureRetry, onceward.FailureStore} {
		t.Run(fmt.Sprint(onFailure), func(t *testing.T) { answersUnderWay(t, onFailure) })
	}
}

func answersUnderWay(t *testing.T, onFailure onceward.Failure) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		status  int
	}{
		"cut": {func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "the first half")
			<-r.Context().Done()
		}, http.StatusConflict},
		"status alone": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			<-r.Context().Done()
		}, http.StatusConflict},
		"of the announced length": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "whole")
			<-r.Context().Done()
		}, http.StatusOK},
		"after it": {func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusCreated)
		}, http.StatusCreated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				handler := &counted{then: test.handler}
				h := newGuard(t, memory.New()).Handler(handler, onceward.Reserved(onFailure),
					onceward.Deadline(time.Minute))
				post(h, "k", `{}`)
				if got := post(h, "k", `{}`); got.status != test.status {
					t.Errorf("E6: a retry gets %d %s; want %d", got.status, got.body, test.status)
				}
				handler.wantRuns(t, "E6", 1)
			})
		})
	}
}

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
	body := "--B\r\nContent-Disposition: form-data; name=\"upload\"; filename=\"f\"\r\n\r\n" + strings.Repeat("x",
		100_000) + "\r\n--B--\r\n"
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
			h := newGuard(t, memory.New()).Handler(handler, reserved)
			panicOf(func() { post(h, "k", body, withHeader("Content-Type", media)) })
			if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
				os.Remove(path)
				t.Errorf("F5: the temporary file is left behind: %v", err)
			}
			handler.wantRuns(t, "F5", 1)
		})
	}
}

// TestABodyThatWasReadInPart: what is left of a body is not what the client sent. A body that was put back, or decoded, is
// accepted.
func TestABodyThatWasReadInPart(t *testing.T) {
	t.Parallel()
	const body = `{"amount":1,"currency":"EUR"}`
	part := func(r *http.Request) { io.ReadFull(r.Body, make([]byte, 5)) }
	restored := func(r *http.Request) {
		part(r)
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader(body[:5]), r.Body))
	}
	decoded := func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("{}")) }
	for name, test := range map[string]struct {
		read    func(*http.Request)
		edits   []edit
		refused bool
	}{
		"in part":            {part, nil, true},
		"and put back":       {restored, nil, false},
		"decoded":            {decoded, []edit{withHeader("Content-Encoding", "gzip")}, false},
		"in part, in chunks": {part, []edit{chunked(body)}, false}, // which nothing shows
	} {
		for _, protocol := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " ", protocol), func(t *testing.T) {
				t.Parallel()
				store, handler := memory.New(), new(counted)
				h := newGuard(t, store).Handler(handler, reserved, onceward.OperationName("pay"))
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.ProtoMajor != protocol {
						t.Errorf("the protocol is %s", r.Proto)
					}
					test.read(r)
					h.ServeHTTP(w, r)
				}))
				server.EnableHTTP2 = protocol == 2
				server.StartTLS()
				t.Cleanup(server.Close)
				a := send(t, server, "k", body, test.edits...)
				if !test.refused {
					a.want(t, "F5", http.StatusCreated, false)
					return
				}
				a.wantProblem(t, "F1", http.StatusInternalServerError, "body-consumed")
				handler.wantRuns(t, "F1", 0)
				wantNothingStored(t, "F1", store)
			})
		}
	}
}

// TestAnEmptyBodyOfUnknownLength: it may have been read in front of the guard, which nothing shows: it is logged, once for
// each operation.
func TestAnEmptyBodyOfUnknownLength(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := newGuard(t, memory.New(), loggedTo(&log)).Handler(new(counted), reserved)
	drained := func(w http.ResponseWriter, r *http.Request) {
		r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(""))
		h.ServeHTTP(w, r)
	}
	for _, key := range []string{"k", "l"} {
		post(http.HandlerFunc(drained), key, `{"amount":1}`).want(t, "F5", http.StatusCreated, false)
	}
	if got := strings.Count(log.String(), "has an empty body"); got != 1 {
		t.Errorf("F5: %d warnings, want 1:\n%s", got, log.String())
	}
}

// TestALengthForHEAD: the answer to HEAD announces the length of a body that it does not have.
func TestALengthForHEAD(t *testing.T) {
	t.Parallel()
	handler := &counted{then: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5")
		w.WriteHeader(http.StatusOK)
	}}
	h := newGuard(t, memory.New()).Handler(handler, reserved, onceward.Methods(http.MethodHead))
	for _, replayed := range []bool{false, true} {
		serve(h, newRequest(http.MethodHead, "/payments", "k", "")).want(t, "A2", http.StatusOK, replayed)
	}
}
