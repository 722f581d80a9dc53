"""What training prompts are about: lists that the templates of `prompts.py` are filled in with."""

SUBJECTS = """
volcanoes; glaciers; tides; rainbows; thunderstorms; hurricanes; deserts; rainforests; rivers;
caves; coral; whales; dolphins; elephants; honeybees; butterflies; spiders; owls; penguins;
wolves; horses; dogs; salmon; mushrooms; oak trees; bamboo; roses; potatoes; coffee; chocolate;
bread; olive oil; honey; salt; sugar; wine; rice; spices; noodles; ice cream; soap; glass; paper;
steel; concrete; plastic; cotton; wool; silk; leather; bicycles; steam engines; airplanes;
submarines; electric cars; trains; bridges; tunnels; skyscrapers; lighthouses; windmills; solar
panels; batteries; magnets; lasers; microscopes; telescopes; clocks; compasses; maps; cameras;
radio; television; telephones; computers; robots; satellites; rockets; black holes; comets; the
moon; the planet Mars; the sun; gravity; light; sound; heat; electricity; atoms; molecules; acids;
DNA; cells; bacteria; the heart; the lungs; the brain; the liver; bones; muscles; the skin; sleep;
dreams; memory; hunger; pain; allergies; the common cold; diabetes; vitamins; exercise; yoga;
meditation; music; jazz; opera; the piano; the violin; drums; painting; sculpture; photography;
poetry; novels; the theatre; cinema; dance; architecture; gardens; football; tennis; swimming;
running; skiing; sailing; cricket; basketball; card games; puzzles; money; banks; taxes;
insurance; credit cards; the stock market; trade; advertising; contracts; democracy; elections;
courts; the police; human rights; the Roman Empire; ancient Egypt; ancient Greece; the Silk Road;
the Vikings; the Renaissance; the printing press; the Industrial Revolution; the French
Revolution; the First World War; the Cold War; the space race; the Olympic Games; Christmas;
birthdays; weddings; languages; alphabets; numbers; zero; prime numbers; probability; statistics;
geometry; algebra; logic; algorithms; databases; encryption; passwords; search engines; video
games; social media; email; artificial intelligence; climate change; recycling; water supply;
farming; fishing; forests; national parks; tourism; hotels; airports; big cities; villages;
schools; universities; libraries; museums; hospitals; friendship; courage; patience; honesty;
kindness; luck; happiness; loneliness; anger; curiosity; creativity; leadership; teamwork;
negotiation
"""

ACTIVITIES = """
bake bread; make pizza dough; cook rice; grill fish; make a salad dressing; brew coffee; grow
basil; plant an apple tree; keep chickens; build a bookshelf; paint a room; fix a leaking tap;
change a bicycle tyre; clean a carpet; iron a shirt; sew on a button; knit a scarf; train a puppy;
keep a goldfish; take good photographs; learn Spanish; learn to draw; learn to swim; start
running; lift weights; stretch in the morning; fall asleep faster; get up early; stop biting my
nails; drink more water; eat less sugar; save money every month; plan a household budget; buy a
used car; rent a flat; move to another city; write a letter of application; prepare for an exam;
give a presentation; write a diary; read more books; memorize a poem; organize my desk; manage my
time; work with a difficult colleague; ask for a higher salary; start a small business; build a
website; learn programming; choose a laptop; protect my computer; back up my files; make new
friends; apologize to a friend; plan a birthday party; write a wedding toast; choose a present for
my mother; travel by train; pack a suitcase; camp in the forest; read a map; find the North Star;
make a fire; survive in the cold; treat a small burn; calm a crying baby; help my child with
reading; teach my son to ride a bicycle; talk to teenagers; care for an old dog; remove a stain;
sharpen a knife; store vegetables; freeze soup; prepare lunch for work; host a dinner; set a
table; learn the piano; sing in a choir; play the drums; juggle; learn magic tricks; solve
crosswords; play poker; meditate; deal with stress
"""

CHARACTERS = """
a young baker; an old sailor; a shy robot; a clever fox; a lost kitten; a brave princess; a tired
dragon; a lonely giant; a curious girl; a forgetful wizard; a retired teacher; a night watchman; a
taxi driver; a violin maker; a beekeeper; a postman; a fisherman's daughter; two brothers; an
astronaut; a gardener; a blind painter; a travelling circus; a talking tree; a detective; a
librarian; a mountain guide; a ghost; a small elephant; a chess player; a doctor in a village; a
street musician; an inventor; a shepherd; a train conductor; a queen without a country; a boy who
never sleeps; a woman who speaks with birds; a mouse in a cathedral; a pilot; a thief with a good
heart
"""

EVENTS = """
finds a key that fits no door; gets lost in the fog; receives a map; makes an unlikely friend;
loses a bet; hears a strange song; wins a race; breaks a promise; discovers an island; learns to
forgive; meets a stranger on a bridge; saves a village from a flood; builds a boat; opens a shop;
returns home after many years; finds an old photograph; wakes up in another century; has only one
day left; keeps a secret; must choose between two roads
"""

PLACES = """
Paris; London; New York; Tokyo; Cairo; Sydney; Rio de Janeiro; Istanbul; Berlin; Madrid; Lisbon;
Vienna; Prague; Venice; Athens; Edinburgh; Dublin; Oslo; Iceland; Norway; Scotland; Ireland;
Portugal; Greece; Morocco; Kenya; South Africa; India; Thailand; Vietnam; Japan; China; New
Zealand; Canada; Mexico; Peru; Chile; Argentina; the Alps; the Himalayas; the Sahara; the Amazon;
the Grand Canyon; Yellowstone; Hawaii; Antarctica; the Baltic Sea; the Mediterranean
"""

PEOPLE = """
Albert Einstein; Isaac Newton; Charles Darwin; Galileo Galilei; Leonardo da Vinci; Michelangelo;
Vincent van Gogh; Pablo Picasso; Frida Kahlo; Johann Sebastian Bach; Mozart; Beethoven; William
Shakespeare; Jane Austen; Charles Dickens; Mark Twain; Leo Tolstoy; Homer; Socrates; Plato;
Aristotle; Confucius; Julius Caesar; Cleopatra; Alexander the Great; Genghis Khan; Joan of Arc;
Christopher Columbus; Queen Elizabeth I; Napoleon; Abraham Lincoln; Florence Nightingale; Ada
Lovelace; Alan Turing; Nikola Tesla; Thomas Edison; the Wright brothers; Amelia Earhart; Neil
Armstrong; Mahatma Gandhi; Nelson Mandela; Martin Luther King; Rosa Parks; Rachel Carson; Jane
Goodall
"""

TASKS = """
reverses a string; checks whether a word is a palindrome; counts the vowels in a text; finds the
largest number in a list; sorts a list of names; removes duplicates from a list; merges two
dictionaries; computes the factorial of a number; prints the first Fibonacci numbers; checks
whether a number is prime; finds common elements of two lists; converts Celsius to Fahrenheit;
counts the words in a file; reads a CSV file; writes a list to a JSON file; downloads a web page;
computes the average of a list; finds the median; transposes a matrix; multiplies two matrices;
flattens a nested list; implements a stack; implements a queue; implements binary search;
implements bubble sort; implements quicksort; rolls two dice; shuffles a deck of cards; plays
rock, paper, scissors; guesses a number; validates an email address; formats a date; counts the
days between two dates; generates a random password; encodes a text in Morse code; draws a
triangle of stars; computes compound interest; converts numbers to Roman numerals; finds all
anagrams in a list; groups words by their first letter; caches the results of a function; measures
how long a function takes; retries a function that fails; walks through a directory tree; renames
many files; parses command line arguments; logs to a file; sends an email; queries a SQLite
database; starts several threads
"""


def split(topics: str) -> list[str]:
    """Return the entries of one of the lists above."""
    return [" ".join(entry.split()) for entry in topics.split(";")]
