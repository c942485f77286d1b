// hx_text_test - a text that grows; edit distances and the nearest word.

#include "tensor/hx_text.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

Test(hx_text, grows)
{
    hx_text_t text = {0};
    for (int at = 0; at < 1000; at++) {
        hx_text_add(&text, "%d,", at);
    }
    cr_assert_eq(strlen(text.bytes), text.size);
    cr_assert_eq(strncmp(text.bytes, "0,1,2,", 6), 0);
    cr_assert_str_eq(text.bytes + text.size - 4, "999,");
    free(text.bytes);
}

Test(hx_text, counts_edits)
{
    cr_assert_eq(hx_distance("", ""), 0);
    cr_assert_eq(hx_distance("abc", ""), 3);
    cr_assert_eq(hx_distance("", "ab"), 2);
    cr_assert_eq(hx_distance("kitten", "sitting"), 3);
    cr_assert_eq(hx_distance("lyaers", "layers"), 1, "a swap is one edit");
    cr_assert_eq(hx_distance("heads", "heads"), 0);
}

Test(hx_text, is_symmetric)
{
    static const char *const words[] = {"quorum", "staleness", "forum", "", "stale", "run_ahead"};
    for (size_t a = 0; a < HX_COUNT(words); a++) {
        for (size_t b = 0; b < HX_COUNT(words); b++) {
            cr_assert_eq(hx_distance(words[a], words[b]), hx_distance(words[b], words[a]));
        }
    }
}

Test(hx_text, finds_the_nearest_word)
{
    static const char *const words[] = {"layers", "heads", "channels", "context"};
    cr_assert_str_eq(hx_nearest("chanels", words, HX_COUNT(words)), "channels");
    cr_assert_str_eq(hx_nearest("head", words, HX_COUNT(words)), "heads");
    cr_assert_null(hx_nearest("head", words, 0));
}

Test(hx_text, compares_long_words_by_their_beginning)
{
    char word[4 * HX_WORD_MAX];
    memset(word, 'x', sizeof word);
    word[sizeof word - 1] = '\0';
    cr_assert_eq(hx_distance(word, ""), HX_WORD_MAX);
    cr_assert_eq(hx_distance(word, word), 0);
}
