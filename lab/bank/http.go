package bank

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"github.com/onceward/onceward"
	oncewardgin "github.com/onceward/onceward/adapter/gin"
	"github.com/onceward/onceward/lab/bank/db"
	"github.com/onceward/onceward/outbox"
)

// server answers requests over HTTP.
type server struct {
	store  *accounts
	tokens tokens
	queue  Queue
	engine *gin.Engine
	box    *outbox.Outbox
}

func newServer(store *accounts, tokens tokens, queue Queue, guard *onceward.Guard, box *outbox.Outbox) (*server, error) {
	s := &server{store: store, tokens: tokens, queue: queue, engine: gin.New(), box: box}
	s.engine.ContextWithFallback = true
	if err := s.engine.SetTrustedProxies(nil); err != nil { // no client can choose the address that is logged for it
		return nil, err
	}
	once := func(h gin.HandlerFunc) gin.HandlerFunc {
		return oncewardgin.Handler(guard, h, onceward.Transactional(), onceward.KeyOptional())
	}
	s.engine.Use(gin.Recovery())
	s.engine.POST("/users", once(s.createUser))
	s.engine.POST("/users/login", s.login)
	users := s.engine.Group("/", s.authenticate)
	users.POST("/accounts", once(s.createAccount))
	users.GET("/accounts/:id", s.getAccount)
	users.POST("/transfers", once(s.createTransfer))
	return s, oncewardgin.Audit(s.engine, "POST /users/login")
}

// callerOf returns whose key it is: a user's, or at the sign-up everyone's. There clients use random keys, so that two
// of them do not choose the same.
func callerOf(r *http.Request) (string, error) {
	c, ok := oncewardgin.FromRequest(r)
	if !ok {
		return "", onceward.ErrUnauthenticated
	}
	if user := c.GetString("user"); user != "" {
		return "user " + user, nil
	}
	return "sign-up", nil
}

// later leaves a task to the queue: with the operation, in its transaction.
func (s *server) later(ctx context.Context, task, payload string) error {
	tx, ok := onceward.LookupTx(ctx)
	if !ok {
		return s.queue.Enqueue(ctx, task, payload)
	}
	_, err := s.box.Add(ctx, tx, outbox.Message{Topic: task, AggregateID: payload, Type: task, Payload: []byte(payload)})
	return err
}

// ServeHTTP implements [http.Handler].
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.engine.ServeHTTP(w, r) }

// authenticate notes who calls.
func (s *server) authenticate(c *gin.Context) {
	user, err := s.tokens.user(strings.TrimPrefix(c.GetHeader("Authorization"), "Bearer "))
	if err != nil {
		c.AbortWithStatusJSON(http.StatusUnauthorized, problem(err))
		return
	}
	c.Set("user", user)
}

type createUserRequest struct {
	Username string `json:"username" binding:"required,alphanum"`
	Password string `json:"password" binding:"required,min=6"`
	Email    string `json:"email" binding:"required,email"`
}

func (s *server) createUser(c *gin.Context) {
	var request createUserRequest
	if s.bind(c, &request); c.IsAborted() {
		return
	}
	password, err := hash(request.Password)
	if err != nil {
		c.JSON(http.StatusInternalServerError, problem(err))
		return
	}
	user := db.User{Username: request.Username, Password: password, Email: request.Email}
	err = s.store.createUser(c, user, func(user db.User) error {
		return s.later(c, taskVerify, user.Username)
	})
	if err != nil {
		c.JSON(statusOf(err), problem(err))
		return
	}
	c.JSON(http.StatusCreated, gin.H{"username": user.Username, "email": user.Email})
}

type loginRequest struct {
	Username string `json:"username" binding:"required"`
	Password string `json:"password" binding:"required"`
}

func (s *server) login(c *gin.Context) {
	var request loginRequest
	if s.bind(c, &request); c.IsAborted() {
		return
	}
	user, err := s.store.GetUser(c, request.Username)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		c.JSON(http.StatusInternalServerError, problem(err))
		return
	}
	if err != nil || !matches(user.Password, request.Password) {
		c.JSON(http.StatusUnauthorized, gin.H{"error": "the name or the password is wrong"})
		return
	}
	c.JSON(http.StatusOK, gin.H{"token": s.tokens.create(user.Username)})
}

type createAccountRequest struct {
	Currency string `json:"currency" binding:"required,oneof=EUR USD"`
	Balance  int64  `json:"balance" binding:"min=0"`
}

func (s *server) createAccount(c *gin.Context) {
	var request createAccountRequest
	if s.bind(c, &request); c.IsAborted() {
		return
	}
	account, err := s.store.CreateAccount(c, db.CreateAccountParams{
		Owner: c.GetString("user"), Balance: request.Balance, Currency: request.Currency,
	})
	if isCode(err, "23505") {
		err = errTaken
	}
	if err != nil {
		c.JSON(statusOf(err), problem(err))
		return
	}
	c.JSON(http.StatusCreated, account)
}

func (s *server) getAccount(c *gin.Context) {
	var request struct {
		ID int64 `uri:"id" binding:"required,min=1"`
	}
	if err := c.ShouldBindUri(&request); err != nil {
		c.JSON(http.StatusBadRequest, problem(err))
		return
	}
	account, err := s.store.GetAccount(c, request.ID)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = errNotFound
	case err == nil && account.Owner != c.GetString("user"):
		err = errNotOwner
	}
	if err != nil {
		c.JSON(statusOf(err), problem(err))
		return
	}
	c.JSON(http.StatusOK, account)
}

type transferRequest struct {
	From     int64  `json:"from_account_id" binding:"required,min=1"`
	To       int64  `json:"to_account_id" binding:"required,min=1,nefield=From"`
	Amount   int64  `json:"amount" binding:"required,gt=0"`
	Currency string `json:"currency" binding:"required,oneof=EUR USD"`
}

func (s *server) createTransfer(c *gin.Context) {
	var request transferRequest
	if s.bind(c, &request); c.IsAborted() {
		return
	}
	result, err := s.store.transfer(c, c.GetString("user"), db.CreateTransferParams{
		FromAccountID: request.From, ToAccountID: request.To, Amount: request.Amount,
	}, request.Currency)
	if err != nil {
		c.JSON(statusOf(err), problem(err))
		return
	}
	c.JSON(http.StatusCreated, result)
}

// bind reads a request, or answers 400 and aborts.
func (s *server) bind(c *gin.Context, request any) {
	if err := c.ShouldBindJSON(request); err != nil {
		if op := onceward.FromContext(c); op != nil {
			op.Reject() // the corrected request may use the same key
		}
		c.AbortWithStatusJSON(http.StatusBadRequest, problem(err))
	}
}

// statusOf returns the status of an error.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errNotFound):
		return http.StatusNotFound
	case errors.Is(err, errNotOwner):
		return http.StatusForbidden
	case errors.Is(err, errTaken):
		return http.StatusConflict
	case errors.Is(err, errCurrency), errors.Is(err, errInsufficient):
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

func problem(err error) gin.H { return gin.H{"error": err.Error()} }
