package tools

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"
)

const maxQuestion = 4000 // characters

// AskUser puts a question to the owner and waits for the answer.
var AskUser = Tool{
	Name:        "ask_user",
	Description: "Ask the owner one question and wait for the answer, when the task cannot go on without it. Never ask for a secret.",
	Params:      []Param{{Name: "question", Type: "string", Required: true}},
	Risk:        Safe,
	Egress:      EgressNone,
	Assess: func(args Args) (Plan, error) {
		q := args.String("question")
		if strings.TrimSpace(q) == "" {
			return Plan{}, fmt.Errorf("the question is empty")
		}
		if utf8.RuneCountInString(q) > maxQuestion {
			return Plan{}, fmt.Errorf("the question is longer than %d characters", maxQuestion)
		}
		return Plan{}, nil
	},
	Judge: func(args Args, _ Plan, _ Facts) Judgement {
		return Judgement{
			Summary: "ask: " + args.String("question"),
			Risk:    Safe,
			Targets: []Target{{Key: "ask_user", Widest: Always}},
			Widest:  Always,
			Egress:  Egress{Kind: EgressNone},
		}
	},
	Execute: func(ctx context.Context, call *Call) Output {
		if call.Host.Ask == nil {
			return Output{Err: "nobody can be asked here: decide yourself or say what is missing"}
		}
		answer, err := call.Host.Ask(ctx, call.Args.String("question"))
		if err != nil {
			return Output{Err: err.Error(), Interrupted: ctx.Err() != nil}
		}
		if answer == "" {
			answer = "(no answer)"
		}
		return Output{Text: answer, Bytes: int64(len(answer))}
	},
}
