// frame: any bytes are either refused or what the encoder would have written; and a session takes
// any run of frames without coming apart.
//
// The input is a list: two bytes with the size of a frame, the frame, two bytes with the size of
// its piece (whose bytes do not matter).

#include "net/session.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const uint8_t *at;
    size_t left;
} input_t;

static size_t take_size(input_t *input)
{
    if (input->left < 2) {
        input->left = 0;
        return 0;
    }
    const size_t size = (size_t)input->at[0] << 8 | input->at[1];
    input->at += 2;
    input->left -= 2;
    return size;
}

static session_t *open_session(void)
{
    session_t *const session = session_new(&(session_conf_t){.self = 2,
                                                             .peer = 1,
                                                             .channel = FRAME_CONTROL,
                                                             .boot = 222,
                                                             .peer_boot = 111,
                                                             .dead_after = HX_SEC(10),
                                                             .meet_within = HX_SEC(5),
                                                             .window = 1 << 20,
                                                             .piece_first = 1000,
                                                             .piece_max = 4000},
                                           0);
    static const uint8_t header[] = {0x92, 1, 16};
    blob_t *blob = blob_virtual(5000);
    for (int at = 0; at < 3; at++) {
        session_send(session, header, sizeof header, blob);
    }
    blob_release(&blob);
    return session;
}

static void send_all(session_t *session, hx_time_t now)
{
    session_out_t out;
    for (int at = 0; at < 100 && session_due(session, now, &out); at++) {
        uint8_t head[FRAME_HEAD_MAX];
        HX_ASSERT(frame_encode(&out.frame, head) > 0);
        session_sent(session, &out, now);
    }
}

static void give(session_t *session, const frame_t *frame, size_t piece_size, hx_time_t now)
{
    if (frame->from != 1 || frame->channel != FRAME_CONTROL) {
        return;
    }
    blob_t *piece = piece_size > 0 ? blob_new(piece_size) : NULL;
    if (piece) {
        memset(blob_edit(piece), 0, piece_size);
    }
    session_message_t message;
    if (session_receive(session, frame, piece, now, &message) == SESSION_MESSAGE) {
        HX_ASSERT(message.header_size > 0);
        blob_release(&message.blob);
    }
    blob_release(&piece);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session_t *session = open_session();
    input_t input = {data, size};
    hx_time_t now = 0;
    while (input.left > 0) {
        send_all(session, now);
        const size_t told = take_size(&input);
        const size_t head_size = HX_MIN(told, input.left);
        frame_t frame;
        if (frame_decode(input.at, head_size, &frame) == HX_OK) {
            uint8_t again[FRAME_HEAD_MAX];
            HX_ASSERT(frame_encode(&frame, again) == head_size);
            HX_ASSERT(memcmp(again, input.at, head_size) == 0);
            input.at += head_size;
            input.left -= head_size;
            give(session, &frame, take_size(&input), now);
        } else {
            input.at += head_size;
            input.left -= head_size;
            (void)take_size(&input);
        }
        now += HX_MS(7);
    }
    HX_ASSERT(session_stats(session).flight_bytes <= session_stats(session).queued_bytes + 100000);
    session_destroy(&session);
    return 0;
}
