// The library as its users use it, with all of its defaults:
//
//	client models|plain|stream [MESSAGE…]
//
// It prints what came as one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

type reply struct {
	Text   string `json:"text"`
	Tokens int64  `json:"tokens"`
	Pieces int    `json:"pieces"`
}

func request(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "picket", User: openai.String(os.Getenv("CHAT")),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)}}
}

func plain(ctx context.Context, client openai.Client, text string) (reply, error) {
	r, err := client.Chat.Completions.New(ctx, request(text))
	if err != nil {
		return reply{}, err
	}
	return reply{Text: r.Choices[0].Message.Content, Tokens: r.Usage.TotalTokens}, nil
}

func stream(ctx context.Context, client openai.Client, text string) (out reply, err error) {
	params := request(text)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	s := client.Chat.Completions.NewStreaming(ctx, params)
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		chunk := s.Current()
		all.AddChunk(chunk)
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			out.Pieces++
		}
	}
	if err := s.Err(); err != nil {
		return out, err
	}
	out.Text, out.Tokens = all.Choices[0].Message.Content, all.Usage.TotalTokens
	return out, nil
}

// describe finds what the library says of an error; of one inside a stream that
// is a text with the server's object at its end.
func describe(err error) any {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return map[string]any{"status": e.StatusCode, "code": e.Code, "message": e.Message}
	}
	if _, object, ok := strings.Cut(err.Error(), "streaming: "); ok {
		return json.RawMessage(object)
	}
	return map[string]any{"message": err.Error()}
}

func main() {
	ctx := context.Background()
	client := openai.NewClient(option.WithBaseURL(os.Getenv("BASE_URL")), option.WithAPIKey(os.Getenv("API_KEY")))
	var result struct {
		Models  []string `json:"models,omitempty"`
		Replies []reply  `json:"replies"`
		Error   any      `json:"error,omitempty"`
	}
	var err error
	if os.Args[1] == "models" {
		pages := client.Models.ListAutoPaging(ctx)
		for pages.Next() {
			result.Models = append(result.Models, pages.Current().ID)
		}
		err = pages.Err()
	}
	do := map[string]func(context.Context, openai.Client, string) (reply, error){"plain": plain, "stream": stream}[os.Args[1]]
	for _, text := range os.Args[2:] {
		var r reply
		if r, err = do(ctx, client, text); err != nil {
			break
		}
		result.Replies = append(result.Replies, r)
	}
	if err != nil {
		result.Error = describe(err)
	}
	line, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}
