// tidy - the tree's own rules.
#include <criterion/criterion.h>
Test(tidy, x)
{
}
