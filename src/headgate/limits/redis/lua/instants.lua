-- Sorted instants, earliest first, as one text of little-endian integers of 8 bytes. This comes before the script of a
-- rule whose state is such a text.

local function packed(instant)
  return struct.pack('<i8', instant)
end

local function size(instants)
  return #instants / 8
end

local function at(instants, place)
  return (struct.unpack('<i8', instants, 8 * place - 7))
end

-- How many are not later than `instant`.
local function not_after(instants, instant)
  local low, high = 0, size(instants)
  while low < high do
    local middle = math.floor((low + high + 1) / 2)
    if at(instants, middle) <= instant then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

local function without_first(instants, many)
  return many > 0 and string.sub(instants, 8 * many + 1) or instants
end

-- Without `most` that equal `instant`, or as many as there are; and how many that are.
local function without(instants, instant, most)
  local first, past = not_after(instants, instant - 1), not_after(instants, instant)
  local many = math.min(most, past - first)
  return string.sub(instants, 1, 8 * first) .. without_first(instants, first + many), many
end

local function with(instants, instant, many)
  local place = not_after(instants, instant)
  return string.sub(instants, 1, 8 * place) .. string.rep(packed(instant), many) .. without_first(instants, place)
end
